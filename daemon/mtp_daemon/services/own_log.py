"""Where the front's own log goes: to standard error, or to a file that it rotates itself."""

import logging
import os
import sys
from logging.handlers import RotatingFileHandler

from mtp_daemon.errors import EnvironmentFailure

LOG_FILE = "MTPD_LOG_FILE"
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_BYTES, _OLD_FILES = 5 << 20, 3


def log_handler(nbytes: int = _BYTES) -> logging.Handler:
    """systemd's journal keeps and rotates what comes on standard error; launchd appends it to a file for ever, so under
    launchd $MTPD_LOG_FILE names a file of at most `nbytes`, with three older ones beside it. Raises EnvironmentFailure.
    """
    file = os.environ.get(LOG_FILE)
    try:
        handler = RotatingFileHandler(file, maxBytes=nbytes, backupCount=_OLD_FILES) if file else None
    except OSError as error:
        raise EnvironmentFailure(f"cannot write the log {file}: {error.strerror or error}") from error
    found = handler or logging.StreamHandler(sys.stderr)
    found.setFormatter(logging.Formatter(_FORMAT))
    return found
