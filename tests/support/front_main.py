"""The real front with fake children, as a program: `python -m support.front_main RUN_DIR MODEL SETTINGS_JSON`."""

import json
import logging
import sys
from pathlib import Path

from mtp_daemon.config import load_settings
from mtp_daemon.errors import DaemonError
from mtp_daemon.front.serve import serve


def main() -> int:
    run_directory, model, settings = sys.argv[1:4]
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        serve(
            load_settings(None, json.loads(settings)),
            Path(model),
            Path(run_directory),
            lambda text: print(text, flush=True),
            lambda role: [sys.executable, "-m", "support.fake_children", role],
        )
    except DaemonError as error:
        print(f"mtpd: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
