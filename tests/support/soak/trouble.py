"""What happens to the service while it answers: kills at a steady rate, and stops, sleeps and other sizes in between.

Drawn by chance from a seed.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Literal

import psutil

from mtp_client.errors import ClientError, ServiceError
from support.soak.service import ROLES, Service, Wrong, until

Kill = Literal["kill engine", "kill loader", "kill both", "kill front"]
_KILLS: dict[Kill, int] = {"kill engine": 9, "kill loader": 9, "kill both": 1, "kill front": 2}
Act = Literal["stop engine", "stop loader", "stop front", "sleep", "resize"]
_ACTS: dict[Act, int] = {"stop engine": 2, "stop loader": 2, "stop front": 1, "sleep": 1, "resize": 4}
# Well below the limit after which a silent child is killed.
_STOPPED_S = (0.3, 2.5)
_SIZES = (0.5, 0.6, 0.8, 1.0)
BACK_S = 120.0


class Trouble:
    """Owner of what was done to the service: `kills` by role since its front started, `counts` of all acts.

    `killed` counts processes, over all fronts. `whole_at`: when the last kill or stop was over, monotonic.
    """

    def __init__(self, service: Service, seed: int, pool_share: float) -> None:
        self._service, self._pool_share = service, pool_share
        self._rng = random.Random(f"{seed}/trouble")
        self.kills: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.killed = 0
        self.whole_at = 0.0
        self._last_running: tuple[str | None, int] = (None, -1)

    def kill(self) -> str:
        """kill -9 of somebody; what was done, nothing when whom it met is dead already or must be spared."""
        kill: Kill = self._rng.choices(list(_KILLS), list(_KILLS.values()))[0]
        if kill == "kill front":
            self._service.kill_front()
            self.kills.clear()
            self.killed += 1
            self.whole_at = time.monotonic()
            return self._count(kill)
        roles = ROLES if kill == "kill both" else (kill.split()[1],)
        return self._count(" and ".join(f"kill {role}" for role in roles if self._kill(role)))

    def act(self) -> str:
        """Anything but a kill; what was done. Raises Wrong when the service takes it otherwise than it must."""
        act: Act = self._rng.choices(list(_ACTS), list(_ACTS.values()))[0]
        if act == "resize":
            return self._resize()
        roles = ("front", *ROLES) if act == "sleep" else (act.split()[1],)
        return self._count(act if self._stop(roles) else "")

    def _count(self, done: str) -> str:
        if done:
            self.counts[done] += 1
        return done

    def calm(self) -> None:
        """The pool as large as it was, both children back."""
        until("both children are ready", self._all_ready, BACK_S)
        self._resize_to(1.0)

    def _all_ready(self) -> bool:
        return all(child["state"] == "ready" for child in self._service.status()["children"].values())

    def _kill(self, role: str) -> bool:
        """kill -9, whatever it does now, start included. False when it is dead already, or must be spared:

        an engine that dies three times on one request before a token of it has rightly had its last try.
        """
        status = self._service.status()
        pid = status["children"][role]["pid"]
        if pid is None:
            return False
        if role == "engine":
            running = status["queue"]["running"], status["queue"]["running_tokens"]
            if running[0] is not None:
                if running[0] == self._last_running[0] and running[1] <= self._last_running[1]:
                    return False
                self._last_running = running
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.whole_at = time.monotonic()
        self.kills[role] += 1
        self.killed += 1
        return True

    def _stop(self, roles: tuple[str, ...]) -> bool:
        """SIGSTOP for a while, then SIGCONT: nobody is killed for it. One that was just killed may be named still."""
        pids = self._service.pids()
        stopped = []
        for role in roles:
            with suppress(KeyError, psutil.NoSuchProcess):
                process = psutil.Process(pids[role])
                process.suspend()
                stopped.append(process)
        time.sleep(self._rng.uniform(*_STOPPED_S))
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.whole_at = time.monotonic()
        return bool(stopped)

    def _resize(self) -> str:
        share = self._rng.choice(_SIZES)
        done = self._resize_to(share)
        self._count("resize" if done else "")
        return f"resize to {share:g}" if done else ""

    def _resize_to(self, share: float) -> bool:
        """False when there is no loader just now; raises Wrong when a sound one refuses."""
        try:
            with self._service.client() as client:
                client.resize(f"{100 * self._pool_share * share:g}%", wait_s=90.0)
        except ServiceError as error:
            if error.kind == "environment" and "the loader" in str(error) and "not answer" not in str(error):
                return False
            raise Wrong(f"resize: {error}") from error
        except ClientError as error:
            raise Wrong(f"resize: {error}") from error
        return True
