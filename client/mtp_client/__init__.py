"""The thin client: the `mtp-client` command and the same thing as a library."""

from mtp_client.answer import Answer
from mtp_client.client import Client
from mtp_client.errors import ClientError, ConnectionLost, NotRunning, RequestRefused, ServiceBug, ServiceError
from mtp_client.mailbox import Event

__all__ = [
    "Answer",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Event",
    "NotRunning",
    "RequestRefused",
    "ServiceBug",
    "ServiceError",
]
