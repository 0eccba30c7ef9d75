"""What happens to the service while it answers: kills, stops, other sizes. Drawn by chance from a seed."""

import os
import random
import signal
import time
from collections import Counter
from typing import Any, Literal

import psutil

from mtp_client.errors import ClientError, ServiceError
from support.soak.service import ROLES, Service, Wrong, until

Act = Literal["kill engine", "kill loader", "kill both", "stop engine", "stop loader", "sleep", "resize", "kill front"]
_WEIGHTS: dict[Act, int] = {
    "kill engine": 5, "kill loader": 5, "kill both": 1, "stop engine": 2, "stop loader": 2, "sleep": 1, "resize": 4,
    "kill front": 1,
}  # fmt: skip
# Well below the limit after which a silent child is killed.
_STOPPED_S = (0.3, 2.5)
_SIZES = (0.5, 0.6, 0.8, 1.0)
BACK_S = 120.0


class Trouble:
    """Owner of what was done to the service: `kills` by role since its front started, `counts` of all acts."""

    def __init__(self, service: Service, seed: int, pool_share: float) -> None:
        self._service, self._pool_share = service, pool_share
        self._rng = random.Random(f"{seed}/trouble")
        self.kills: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.slots: list[int] | None = None
        self._last_running: tuple[str | None, int] = (None, -1)

    def act(self) -> str:
        """One of the acts; what was done. Raises Wrong when the service takes it otherwise than it must."""
        act: Act = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        match act:
            case "kill engine" | "kill loader" | "kill both":
                roles = ROLES if act == "kill both" else (act.split()[1],)
                done = [role for role in roles if self._kill(role)]
                act_done = f"kill {' and '.join(done)}" if done else ""
            case "stop engine" | "stop loader":
                act_done = act if self._stop((act.split()[1],)) else ""
            case "sleep":
                act_done = act if self._stop(("front", *ROLES)) else ""
            case "resize":
                act_done = self._resize()
            case "kill front":
                self._service.kill_front()
                self.kills.clear()
                self.slots = None
                act_done = act
        if act_done:
            self.counts[act_done.split(" to ")[0]] += 1
        return act_done

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
            same = running[0] is not None and running[0] == self._last_running[0]
            if same and running[1] <= self._last_running[1]:
                return False
            self._last_running = running
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[role] += 1
        return True

    def _stop(self, roles: tuple[str, ...]) -> bool:
        """SIGSTOP for a while, then SIGCONT: nobody is killed for it."""
        pids = self._service.pids()
        chosen = [psutil.Process(pids[role]) for role in roles if role in pids]
        for process in chosen:
            process.suspend()
        time.sleep(self._rng.uniform(*_STOPPED_S))
        for process in chosen:
            if process.is_running():
                process.resume()
        return bool(chosen)

    def _resize(self) -> str:
        share = self._rng.choice(_SIZES)
        return f"resize to {share:g}" if self._resize_to(share) else ""

    def _resize_to(self, share: float) -> bool:
        """False when there is no loader just now; raises Wrong when a sound one refuses."""
        try:
            with self._service.client() as client:
                result: Any = client.resize(f"{100 * self._pool_share * share:g}%", wait_s=90.0)
        except ServiceError as error:
            if error.kind == "environment" and "the loader" in str(error) and "not answer" not in str(error):
                return False
            raise Wrong(f"resize: {error}") from error
        except ClientError as error:
            raise Wrong(f"resize: {error}") from error
        self.slots = list(result["slots"])
        return True
