"""The decode engine's process.

The engine's imports take seconds. A front that dies meanwhile must not leave a process that goes on importing, so the
lifeline is watched before anything else is imported.
"""

import os
import select
import sys
import threading


def watch_lifeline(arguments: list[str]) -> None:
    """Leave as soon as the front's end of the lifeline closes. Reads nothing: what the front sends is not ours here."""
    flag = "--lifeline"
    if flag not in arguments[:-1]:
        return  # the argument parser will say so
    try:
        lifeline = int(arguments[arguments.index(flag) + 1])
    except ValueError:
        return
    poller = select.poll()
    poller.register(lifeline, 0)  # the end of the stream is told without being asked for

    def watch() -> None:
        if any(event & select.POLLHUP for _, event in poller.poll()):
            os._exit(0)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    watch_lifeline(sys.argv)

    from mtp_daemon.engine.process.main import main

    sys.exit(main())
