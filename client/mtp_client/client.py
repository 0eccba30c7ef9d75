"""The library: `for event in Client().generate("a prompt"): …`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtp_client.answer import Answer
from mtp_client.connection import Connection
from mtp_client.errors import ClientError, ConnectionLost, NotRunning
from mtp_client.mailbox import Mailbox
from mtp_client.remote import remote
from mtp_protocol.client_messages import (
    Attach,
    Calibrate,
    Cancel,
    Done,
    Hello,
    Pin,
    Resize,
    Shutdown,
    Status,
    Submit,
    Welcome,
)
from mtp_protocol.run_directory import default_run_directory
from mtp_protocol.sampling import Sampling

# Answers that cost the service no work come at once; a request's own messages have no such limit.
REPLY_S = 5.0
HELLO_S = 1.5


class Client:
    """A connection to the mtpd service of `run_dir` (default: the user's own). One thread at a time.

    `server` ("tcp://HOST:PORT") is a service elsewhere instead; then `server_key` is the file with its public key and
    `key` the one with our secret key. Raises RequestRefused when these cannot be used.

    Raises NotRunning, in under two seconds (eight with a `server`), when nobody serves there. Every call raises
    ConnectionLost as soon as the service is seen to have died.
    """

    def __init__(
        self,
        run_dir: Path | str | None = None,
        *,
        name: str = "mtp_client",
        server: str | None = None,
        server_key: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        self.run_directory = Path(run_dir) if run_dir is not None else default_run_directory()
        elsewhere = remote(server, server_key, key)
        self._mailbox = Mailbox(Connection(self.run_directory, elsewhere))
        wait_s = HELLO_S if elsewhere is None else REPLY_S
        try:
            self.welcome = self._mailbox.ask(Hello(self._mailbox.next_ref(), name), Welcome, wait_s)
        except ConnectionLost as error:
            self.close()
            where = f"in {self.run_directory}" if elsewhere is None else f"at {elsewhere.address}"
            raise NotRunning(f"the mtpd service {where} does not answer: {error}") from error
        except ClientError:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._mailbox.closed

    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: tuple[int, ...] | None = None,
        raw: bool = False,
        system: str | None = None,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        sampling: Sampling | None = None,
        speculation: str | None = None,
        depth: int | None = None,
        keep_s: float = 0.0,
    ) -> Answer:
        """Submit a prompt now; iterate over the result for its events. Fields as in the protocol's `Submit`."""
        ref = self._mailbox.next_ref()
        chosen = sampling if sampling is not None else Sampling()
        self._mailbox.open(
            Submit(ref, prompt, prompt_ids, raw, system, max_tokens, stop, chosen, speculation, depth, keep_s)
        )
        return Answer(self._mailbox, ref)

    def attach(self, request: bytes, position: int = 0) -> Answer:
        """Follow a kept request from token `position` on."""
        ref = self._mailbox.next_ref()
        self._mailbox.open(Attach(ref, request, position))
        return Answer(self._mailbox, ref)

    def cancel(self, request: bytes) -> None:
        """Cancel any request whose id one knows."""
        self._mailbox.ask(Cancel(self._mailbox.next_ref(), request), Done, REPLY_S)

    def status(self) -> Mapping[str, Any]:
        """The service's own account of itself."""
        return self._mailbox.ask(Status(self._mailbox.next_ref()), Done, REPLY_S).result

    def shutdown(self, deadline_s: float = 10.0) -> None:
        """Ask the service to stop; returns when it has understood."""
        self._mailbox.ask(Shutdown(self._mailbox.next_ref(), deadline_s), Done, REPLY_S)

    def resize(self, pool: str, wait_s: float = 60.0) -> Mapping[str, Any]:
        """Make the pool `pool` large ("4GiB", "25%", "auto"); returns what it became."""
        return self._mailbox.ask(Resize(self._mailbox.next_ref(), pool), Done, wait_s).result

    def pin(self, experts: tuple[tuple[int, int], ...], wait_s: float = 60.0) -> Mapping[str, Any]:
        """Hold these (layer, expert) pairs in the pool; none: pin nothing."""
        return self._mailbox.ask(Pin(self._mailbox.next_ref(), experts), Done, wait_s).result

    def calibrate(
        self, last_s: float | None = None, shares: tuple[float, ...] = (), wait_s: float = 400.0
    ) -> Mapping[str, Any]:
        """Prove pins on what the service routed in the last `last_s` seconds; hold those that pay (see `Calibrate`)."""
        return self._mailbox.ask(Calibrate(self._mailbox.next_ref(), last_s, shares), Done, wait_s).result

    def close(self) -> None:
        """Leave; requests submitted without `keep_s` are cancelled by the service."""
        self._mailbox.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
