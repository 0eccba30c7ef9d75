"""Where TCP is served, if anywhere: an address that was asked for, and the keys without which there is no TCP."""

import ipaddress
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.config import Settings
from mtp_daemon.errors import UserError
from mtp_daemon.services.units import places
from mtp_protocol.key_files import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyFileError, read_pair, read_public

_ADDRESS = re.compile(r"tcp://(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):(\d{1,5})")
# More keys than this are no allow list; each handshake reads them.
_MAX_CLIENTS = 1024


@dataclass(frozen=True)
class Listener:
    """A checked address and the service's pair. There is no way to make one without a secret key."""

    address: str
    ipv6: bool
    public: bytes
    secret: bytes
    clients: Path

    def allowed(self) -> frozenset[bytes]:
        """Public keys (Z85) that may connect now: read at each handshake, so adding and removing a file is enough."""
        keys = set()
        for path in sorted(self.clients.glob(f"*{PUBLIC_SUFFIX}"))[:_MAX_CLIENTS]:
            try:
                keys.add(read_public(path))
            except KeyFileError:
                continue
        return frozenset(keys)


def key_directory(given: str | None) -> Path:
    """The `key_dir` setting, else `keys` beside the configuration file."""
    return Path(given) if given is not None else places().config.parent / "keys"


def server_key(directory: Path) -> Path:
    return directory / f"server{SECRET_SUFFIX}"


def client_directory(directory: Path) -> Path:
    return directory / "clients"


def listener_of(settings: Settings) -> Listener | None:
    """None unless `listen` is set. Raises UserError for an address that is not to be served, or keys that cannot be."""
    if settings.listen is None:
        return None
    address, ipv6 = _checked(settings.listen, anywhere=settings.listen_anywhere)
    directory = key_directory(settings.key_dir)
    for private in (directory, client_directory(directory)):
        _check_private(private)
    try:
        public, secret = read_pair(server_key(directory))
    except KeyFileError as error:
        raise UserError(f"listen needs this service's key: {error}; make one with `mtpd keygen`") from error
    return Listener(address, ipv6, public, secret, client_directory(directory))


def _checked(text: str, *, anywhere: bool) -> tuple[str, bool]:
    """A literal IP address only: what a name stands for may change, and `*` hides what it opens."""
    match = _ADDRESS.fullmatch("tcp://0.0.0.0:" + text[8:] if text.startswith("tcp://*:") else text)
    try:
        if match is None:
            raise ValueError("no address")
        ip = ipaddress.ip_address(match[1] or match[2])
    except ValueError:
        raise UserError(f"listen must be tcp://IP:PORT or tcp://[IPV6]:PORT with a numeric IP, not {text!r}") from None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    if (ip.is_unspecified or (mapped is not None and mapped.is_unspecified)) and not anywhere:
        raise UserError(f"listen = {text!r} would serve on every network: name one address, or set listen_anywhere")
    port = int(match[3])
    if port > 65535:
        raise UserError(f"listen: there is no port {port}")
    host = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"tcp://{host}:{port or '*'}", ip.version == 6


def _check_private(directory: Path) -> None:
    try:
        status = os.lstat(directory)
    except OSError as error:
        raise UserError(f"listen needs keys in {directory} ({error.strerror}): run `mtpd keygen`") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UserError(f"{directory} must be a directory of yours alone: chmod 700 it")
