"""`python -m mtp_loader.service`: started by the front, never by hand."""

import sys

from mtp_loader.service.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
