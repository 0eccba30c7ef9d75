"""The decode engine's process."""

import sys

from mtp_daemon.engine.process.main import main

if __name__ == "__main__":
    sys.exit(main())
