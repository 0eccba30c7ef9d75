"""The soak itself: the first part in trouble, the second in calm, where nobody is killed and memory must not grow."""

import json
import queue
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtp_client.errors import ClientError
from support.soak import idle
from support.soak.asker import Answered, Asker, Came, ended
from support.soak.pauses import LONGEST_S, Pauses
from support.soak.picture import draw
from support.soak.questions import compute
from support.soak.samples import Growth, Samples, growth, lived_longest, seen_idle, unsteady
from support.soak.schedule import Schedule
from support.soak.service import Service, Wrong, until
from support.soak.trouble import Trouble

_LOOK_S = 0.1
# Of the calm, how much does not count: the pool fills, allocators find their size.
_WARM_UP = 0.25


@dataclass(frozen=True)
class Plan:
    """`trouble_share`: the part of the time in which things are done to the service: a kill every `kill_s` and anything
    else every `act_s`, on average. `silent_s`: silence for a check of everything so often. `pauses_count`: a pause of
    more than `LONGEST_S` is a fault; on a machine that does other work it may not be ours. `hang_s` without a token
    is one at once.
    """

    model: Path
    minutes: float
    seed: int = 0
    out: Path | None = None
    clients: int = 3
    pool_share: float = 0.4
    trouble_share: float = 0.7
    kill_s: float = 4.5
    act_s: float = 8.0
    silent_s: float = 45.0
    sample_s: float = 2.0
    pauses_count: bool = True
    hang_s: float = 90.0
    chunk: int = 64
    questions: int = 12


@dataclass
class Report:
    """Everything that the soak found. `fault` is the first thing that was wrong; None is what one hopes for."""

    seconds: float = 0.0
    tokens: int = 0
    fault: str | None = None
    answers: dict[str, int] = field(default_factory=dict)
    acts: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    longest_pause_s: float = 0.0
    long_pauses: list[tuple[float, float]] = field(default_factory=list)
    checks: int = 0
    growth: list[Growth] = field(default_factory=list)
    steady: dict[str, str] = field(default_factory=dict)
    hit_rate: float | None = None


def soak(plan: Plan, say: Callable[[str], None]) -> Report:
    """Never raises for a fault of the service: the report names it."""
    say(f"right answers of {plan.model.name}, by mlx-lm with every expert resident (seed {plan.seed}) …")
    questions = compute(plan.model, plan.seed, plan.chunk, plan.questions)
    with tempfile.TemporaryDirectory(prefix="mtpd-soak-") as name:
        home = Path(name)
        flags = ["--pool", f"{100 * plan.pool_share:g}%", "--chunk", str(plan.chunk), "--restart-limit", "100"]
        service = Service(plan.model, home, flags)
        soaking = _Soak(plan, service, say)
        try:
            soaking.askers = [Asker(n, plan.seed, service, questions) for n in range(plan.clients)]
            soaking.run()
        except (Wrong, ClientError) as error:
            soaking.report.fault = str(error)
            say(f"FAULT: {error}\n{service.last_lines()}")
        finally:
            service.end()
            soaking.finish()
    return soaking.report


class _Soak:
    """Owner of the clock and of the report; the driver's one thread."""

    def __init__(self, plan: Plan, service: Service, say: Callable[[str], None]) -> None:
        self._plan, self._service, self._say = plan, service, say
        self._trouble = Trouble(service, plan.seed, plan.pool_share)
        self._kills = Schedule(random.Random(f"{plan.seed}/kills"), plan.kill_s)
        self._acts = Schedule(random.Random(f"{plan.seed}/acts"), plan.act_s)
        self._samples = Samples()
        self._pauses = Pauses()
        self.report = Report()
        self.askers: list[Asker] = []
        self._began = time.monotonic()
        self._sample_at = self._began
        self._calm_from: float | None = None

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> None:
        for asker in self.askers:
            asker.start()
        end = self._plan.minutes * 60
        self._open()
        silence_at = self._plan.silent_s
        while self._now < end:
            if self._calm_from is None and self._now >= end * self._plan.trouble_share:
                self._become_calm()
            elif self._now >= silence_at:
                self._silence()
                self._open()
                silence_at = self._now + self._plan.silent_s
            elif self._calm_from is None:
                self._disturb()
            self._look()
            time.sleep(_LOOK_S)
        self._silence(last=True)
        self._service.stop()
        self._judge()

    def _become_calm(self) -> None:
        self._say("calm from here on: nobody is killed, memory is watched")
        self._silence()
        self._trouble.calm()
        self._open()
        self._calm_from = self._now

    def _disturb(self) -> None:
        """One kill or one other act, if it is time for one. Whoever was spared is tried again at the next look."""
        for schedule, do in ((self._kills, self._trouble.kill), (self._acts, self._trouble.act)):
            if not schedule.due(self._now) or not (did := do()):
                continue
            schedule.done(self._now)
            self._samples.marks.append((self._now, did))
            self._say(f"{self._now:7.1f} s  {did}")
            if did == "kill front":  # its clients were told; what they wait for now is another service
                self._hear()
                self._pauses.asked(self._trouble.whole_at)
            else:
                self._hear(self._trouble.whole_at)

    def finish(self) -> None:
        """Figures, picture and JSON; also after a fault."""
        report = self.report
        report.seconds, report.tokens = self._now, self._tokens
        report.acts, report.kills = dict(self._trouble.counts), self._trouble.killed
        report.longest_pause_s, report.long_pauses = self._pauses.longest_s, self._long_pauses()
        if self._plan.out is not None:
            self._plan.out.mkdir(parents=True, exist_ok=True)
            title = f"{report.seconds / 60:.0f} minutes of {self._plan.model.name}, seed {self._plan.seed}"
            draw(self._plan.out / "soak.svg", title, self._samples)
            found: dict[str, Any] = {"plan": asdict(self._plan), "report": asdict(report)}
            found["samples"] = asdict(self._samples)
            (self._plan.out / "soak.json").write_text(json.dumps(found, default=str, indent=1))

    @property
    def _tokens(self) -> int:
        return sum(asker.tokens for asker in self.askers)

    def _long_pauses(self) -> list[tuple[float, float]]:
        return [(at - self._began, pause) for at, pause in self._pauses.too_long]

    def _open(self) -> None:
        self._hear()
        self._pauses.asked(time.monotonic())
        for asker in self.askers:
            asker.open_gate.set()

    def _silence(self, last: bool = False) -> None:
        """Every client ends what it is at; then everything is checked."""
        for asker in self.askers:
            asker.leaving = last
            asker.open_gate.clear()
        until("every client has its answer", self._all_idle, self._plan.hang_s * len(self.askers))
        self._hear()
        status = idle.check(self._service, self._trouble)
        self.report.checks += 1
        self._samples.take_idle(self._now, self._service.pids())
        self.report.hit_rate = status.get("hit_rate")
        self._say(
            f"{self._now:7.1f} s  idle and sound: {sum(self.report.answers.values())} answers, {self._tokens} tokens, "
            f"hit rate {status.get('hit_rate') or 0:.1%}, {self._trouble.killed} kills, "
            f"longest pause {self._pauses.longest_s:.1f} s"
        )
        if last:
            for asker in self.askers:
                asker.open_gate.set()
                asker.join(30)

    def _all_idle(self) -> bool:
        self._look()
        return all(asker.idle.is_set() for asker in self.askers)

    def _look(self) -> None:
        """Hear the clients, watch for a hang, take a sample when it is time."""
        self._hear()
        now = time.monotonic()
        asking = not all(asker.idle.is_set() for asker in self.askers)
        if asking and self._pauses.waited_s(now) > self._plan.hang_s:
            raise Wrong(f"no token for {self._plan.hang_s:g} s; status: {self._service.status()}")
        if now >= self._sample_at:
            self._sample_at = now + self._plan.sample_s
            self._samples.take(self._now, self._service.pids(), self._tokens)

    def _hear(self, *disturbed_at: float) -> None:
        """What the clients tell; `disturbed_at` falls among their tokens."""
        came: list[float] = []
        for asker in self.askers:
            with suppress(queue.Empty):
                while True:
                    match asker.told.get_nowait():
                        case Came(at):
                            came.append(at)
                        case Answered(kind, _, stats):
                            self.report.answers[kind] = self.report.answers.get(kind, 0) + 1
                            self._samples.answered(stats)
                        case Exception() as error:
                            raise Wrong(ended(error)) from error
        for at in sorted({*came, *disturbed_at}):
            (self._pauses.disturbed if at in disturbed_at else self._pauses.token)(at)

    def _judge(self) -> None:
        """No pause too long; memory over the calm, descriptors and threads over every process's life."""
        assert self._calm_from is not None
        if self._plan.pauses_count and (long := self._long_pauses()):
            raise Wrong(f"{len(long)} pauses of more than {LONGEST_S:g} s: {[(round(t), round(p)) for t, p in long]}")
        since = self._calm_from + _WARM_UP * (self._now - self._calm_from)
        for role, process in lived_longest(self._samples.processes.values()).items():
            self.report.steady[role] = seen_idle(process)
            if (found := growth(process, since)) is not None:
                self.report.growth.append(found)
                if found.leaks:
                    raise Wrong(f"the {role} grows by {found.per_hour / 1e6:.1f} MB an hour")
        for process in self._samples.processes.values():
            if (why := unsteady(process)) is not None:
                raise Wrong(why)
