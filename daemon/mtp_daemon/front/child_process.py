"""One spawned child: its process, its end of the lifeline, what it writes, and a descriptor that shows its death."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from mtp_daemon.front.child_log import ChildLog
from mtp_protocol.lifeline import send_region

# At most this much of a child's output a loop turn: one that floods its standard error must not stop the front.
_DRAIN_BYTES = 1 << 16
_REAP_S = 5.0


class ChildProcess:
    """Spawned, never forked, from the main thread: a parent-death signal follows the thread that spawned it.

    It leads a session of its own, so that a Ctrl-C in the terminal reaches the front alone, which then stops its
    children in order. Raises OSError when it cannot be started.
    """

    def __init__(self, command: Sequence[str], log: ChildLog) -> None:
        self._log = log
        self.lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.lifeline.setblocking(False)
        output, output_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, "--lifeline", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            self.lifeline.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_end)
        os.set_blocking(output, False)
        self._output: int | None = output
        self._pidfd = os.pidfd_open(self._process.pid) if sys.platform == "linux" else None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_fd(self) -> int:
        """Readable once the process has died: a pidfd; where there is none the lifeline, whose end closes with it."""
        return self._pidfd if self._pidfd is not None else self.lifeline.fileno()

    @property
    def output_fd(self) -> int | None:
        return self._output

    def exit_code(self) -> int | None:
        """Reaps: None while it runs, negative for a signal."""
        return self._process.poll()

    def wait(self) -> None:
        """After SIGKILL: reap. A process in an uninterruptible read may take its time; it is not ours any more then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)

    def send_region(self, generation: int, nbytes: int, fd: int) -> None:
        """Raises OSError when the child is gone."""
        send_region(self.lifeline, generation, nbytes, fd)

    def drain(self) -> None:
        """Move what the child wrote into its log."""
        if self._output is None:
            return
        try:
            data = os.read(self._output, _DRAIN_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._log.feed(data)
        else:
            os.close(self._output)
            self._output = None

    def signal(self, number: signal.Signals) -> None:
        """To the child; SIGKILL to its whole session. Nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def close(self) -> None:
        """After reaping: take the last output and let go of every descriptor."""
        while self._has_output():
            self.drain()
        if self._output is not None:
            os.close(self._output)
            self._output = None
        self._log.end()
        self.lifeline.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _has_output(self) -> bool:
        """A grandchild may hold the pipe open for ever; only what is there now is waited for."""
        return self._output is not None and bool(select.select([self._output], [], [], 0)[0])
