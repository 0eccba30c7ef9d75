"""Deaths and output of the children that live now, in the front's poller."""

from collections.abc import Container, Iterable

import zmq

from mtp_daemon.front.supervise import Supervisor


class ChildFds:
    """Owner of the children's descriptors in `poller`; others may be in it too."""

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._polled: set[int] = set()

    def watch(self, children: Iterable[Supervisor]) -> None:
        wanted: set[int] = set()
        for child in children:
            if child.process is not None:
                wanted.update(fd for fd in (child.process.output_fd,) if fd is not None)
                wanted.update(() if child.exit_seen else (child.process.exit_fd,))
        for fd in self._polled - wanted:
            self._poller.unregister(fd)
        for fd in wanted - self._polled:
            self._poller.register(fd, zmq.POLLIN)
        self._polled = wanted

    def woke(self, events: Container[object]) -> bool:
        """Whether one of them has something to tell."""
        return any(fd in events for fd in self._polled)
