"""A loader and an engine that speak the protocol and misbehave as a script says.

`python -m support.fake_children ROLE --lifeline FD --front A --epoch N …`; `$FAKE_SCRIPT` is a JSON file
`{"loader": [step, …], "engine": [step, …]}` with one step an epoch, the last one for all later epochs. A step:

  die_at / hang_at / mute_at / garbage_at   a moment: "start", "ready", "prefill", "token:5", "stop"
  failed            [kind, text]: say Failed at the start, then leave
  withhold_ready    true: the loader never says Ready
  withhold_calibrated                       a number: so many calibrations never end
  ignore_stop, ignore_term                  true: only SIGKILL helps
  token_every_s, prefill_steps, run         pace, and how many tokens one message carries
  geometry          another fingerprint

The engine's "model" is `token_at`: tests compute the right answer themselves. A prompt holding "STOP@n" ends there,
one holding "FAIL@n" fails there. Every message received goes to `$FAKE_LOG/ROLE-EPOCH.log`.
"""

import argparse
import json
import mmap
import os
import signal
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import zmq

from mtp_protocol import engine_messages as e
from mtp_protocol import loader_messages as ld
from mtp_protocol.client_messages import Usage
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation
from mtp_protocol.lifeline import receive_region

BEAT_S = 0.1


def token_at(prompt: str, position: int) -> int:
    """Token number `position` of the answer to `prompt`."""
    return zlib.crc32(f"{prompt}|{position}".encode()) % 1000


def text_of(token: int) -> str:
    return f"<{token}>"


def answer(prompt: str, count: int) -> list[int]:
    """The whole answer."""
    return [token_at(prompt, i) for i in range(count)]


def tiny_geometry(fingerprint: str = "fake") -> Geometry:
    plane = Plane("gate.weight", "float32", "float32", (4, 256))
    bank = Bank(0, (plane,), Quantisation(), Quantisation(), Quantisation(), (0, 1))
    return Geometry(fingerprint, "fake_moe", True, 1, (bank,), (Layer(0, 0, 8, 2), Layer(1, 0, 8, 2)))


class Child:
    """What both roles share: the socket, the lifeline, the script."""

    def __init__(self, role: str, args: argparse.Namespace) -> None:
        self.role, self.epoch = role, args.epoch
        script = json.loads(Path(os.environ["FAKE_SCRIPT"]).read_text()).get(role) or [{}]
        self.step: dict[str, Any] = script[min(args.epoch, len(script)) - 1]
        self.log = Path(os.environ["FAKE_LOG"]) / f"{role}-{args.epoch}.log"
        self.lifeline = socket.socket(fileno=args.lifeline)
        context = zmq.Context()
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IDENTITY, f"{role}-{args.epoch}".encode())
        self.socket.connect(args.front)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(self.lifeline.fileno(), zmq.POLLIN)
        self.settings = json.loads(args.settings)
        self.sockets = args.socket_dir
        self.muted = False
        self.frozen = False
        self.beat_at = 0.0
        self.region: mmap.mmap | None = None
        if self.step.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def at(self, moment: str) -> None:
        """Do what the script wants done at this moment."""
        if self.step.get("die_at") == moment:
            print(f"RuntimeError: boom at {moment}", file=sys.stderr, flush=True)
            os._exit(7)
        if self.step.get("garbage_at") == moment:
            self.socket.send(b"\xc1 this is no message")
        if self.step.get("mute_at") == moment:
            self.muted = True
        if self.step.get("hang_at") == moment:
            self.frozen = True

    def note(self, message: object) -> None:
        with self.log.open("a") as file:
            file.write(repr(message) + "\n")

    def take_region(self) -> None:
        region = receive_region(self.lifeline)
        if region is None:
            os._exit(0)
        _generation, nbytes, fd = region
        self.region = mmap.mmap(fd, nbytes)
        os.close(fd)

    def run(self) -> None:
        self.at("start")
        if failed := self.step.get("failed"):
            self.say_failed(*failed)
            time.sleep(0.05)
            self.socket.close(linger=500)
            sys.exit(3)
        self.begin()
        while True:
            if not self.muted and time.monotonic() >= self.beat_at:
                self.beat_at = time.monotonic() + BEAT_S
                self.beat()
            ready = dict(self.poller.poll(int(1000 * self.wait_s())))
            if self.lifeline.fileno() in ready and not self.lifeline.recv(1, socket.MSG_PEEK):
                os._exit(0)
            while self.socket.poll(0):
                self.receive(self.socket.recv())
            if not self.frozen:
                self.work()

    def wait_s(self) -> float:
        return BEAT_S

    def say_failed(self, kind: str, text: str) -> None:
        raise NotImplementedError

    def begin(self) -> None: ...

    def beat(self) -> None:
        raise NotImplementedError

    def work(self) -> None: ...

    def receive(self, body: bytes) -> None:
        raise NotImplementedError


class FakeLoader(Child):
    starts = 0
    calibrations = 0

    def say_failed(self, kind: str, text: str) -> None:
        self.socket.send(ld.from_loader.encode(ld.Failed(kind, text)))  # type: ignore[arg-type]

    def begin(self) -> None:
        self.socket.send(ld.from_loader.encode(ld.Geometry(tiny_geometry(self.step.get("geometry", "fake")))))

    def beat(self) -> None:
        facts = {"hits": 3, "misses": 1, "loaders_that_mapped": self.starts}
        self.socket.send(ld.from_loader.encode(ld.Beat(facts)))

    def receive(self, body: bytes) -> None:
        message = ld.to_loader.decode(body)
        self.note(message)
        match message:
            case ld.Pool():
                self.take_region()
                assert self.region is not None
                # A byte in the region counts the loaders that ever mapped it: it survives them.
                self.region[0] += 1
                self.starts = self.region[0]
                self.at("ready")
                if self.step.get("withhold_ready"):
                    return
                self.socket.send(ld.from_loader.encode(ld.Ready(f"ipc://{self.sockets}/loader-{self.epoch}.sock")))
            case ld.Pin():
                self.socket.send(ld.from_loader.encode(ld.Pinned(message.ref, len(message.experts))))
            case ld.Calibrate():
                self.calibrations += 1
                if self.calibrations > self.step.get("withhold_calibrated", 0):
                    self.socket.send(ld.from_loader.encode(ld.Calibrated(message.ref, {"pays": False, "pinned": 0})))
            case ld.Resize():
                self.socket.send(ld.from_loader.encode(ld.Resized(message.ref, message.slots)))
            case ld.Stop():
                self.at("stop")
                if not self.step.get("ignore_stop"):
                    sys.exit(0)


class FakeEngine(Child):
    start: e.Start | None = None
    position = 0
    prefilled = 0
    next_at = 0.0
    cancelled = False
    progress = 0

    def say_failed(self, kind: str, text: str) -> None:
        self.socket.send(e.from_engine.encode(e.Failed(None, kind, text)))  # type: ignore[arg-type]

    def wait_s(self) -> float:
        busy = self.start is not None and not self.frozen
        return max(0.0, min(BEAT_S, self.next_at - time.monotonic())) if busy else BEAT_S

    def beat(self) -> None:
        self.socket.send(e.from_engine.encode(e.Beat(self.progress, self.start is not None, {"epoch": self.epoch})))

    def receive(self, body: bytes) -> None:
        message = e.to_engine.decode(body)
        self.note(message)
        match message:
            case e.Pool():
                self.take_region()
            case e.LoaderUp():
                self.at("ready")
                facts = {"dense_bytes": 1000, "kv_bytes_per_token": 10, "mtp": False, "mtp_why": "a fake has none"}
                self.socket.send(e.from_engine.encode(e.Ready(facts)))
            case e.Start():
                self.start, self.position, self.prefilled = message, len(message.delivered), 0
                self.cancelled = False
                self.next_at = time.monotonic()
            case e.Cancel():
                self.cancelled = self.start is not None and self.start.request == message.request
            case e.Stop():
                self.at("stop")
                if not self.step.get("ignore_stop"):
                    sys.exit(0)

    def work(self) -> None:
        if self.start is None or time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + self.step.get("token_every_s", 0.001)
        self.progress += 1
        if self.cancelled:
            self.finish("cancelled")
        elif self.prefilled < self.step.get("prefill_steps", 2):
            self.prefilled += 1
            self.at("prefill")
            if not self.frozen:
                total = self.step.get("prefill_steps", 2)
                self.socket.send(e.from_engine.encode(e.Progress(self.start.request, self.prefilled, total)))
        else:
            self.tokens()

    def tokens(self) -> None:
        assert self.start is not None
        prompt = self.start.prompt if self.start.prompt is not None else str(list(self.start.prompt_ids or ()))
        end, reason = self.start.max_tokens, "length"
        for mark in ("STOP@", "FAIL@"):
            if mark in prompt:
                end, reason = min(end, int(prompt.split(mark)[1].split()[0])), mark
        if self.position >= end:
            if reason == "FAIL@":
                failed = e.Failed(self.start.request, "environment", "shard 3 at offset 4096 cannot be read")
                self.start = None
                self.socket.send(e.from_engine.encode(failed))
            else:
                self.finish("stop" if reason == "STOP@" else "length")
            return
        ids = [token_at(prompt, i) for i in range(self.position, min(end, self.position + self.step.get("run", 1)))]
        for position in range(self.position, self.position + len(ids)):
            self.at(f"token:{position}")
            if self.frozen:
                return
        text = "".join(text_of(i) for i in ids)
        self.socket.send(e.from_engine.encode(e.Tokens(self.start.request, self.position, tuple(ids), text)))
        self.position += len(ids)

    def finish(self, reason: str) -> None:
        assert self.start is not None
        usage = Usage(3, self.position - len(self.start.delivered))
        done = e.Finished(self.start.request, reason, usage, {"tok_per_s": 1.0})  # type: ignore[arg-type]
        self.start = None
        self.socket.send(e.from_engine.encode(done))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("loader", "engine"))
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--front", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--socket-dir", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--settings", required=True)
    args = parser.parse_args()
    child: Child = {"loader": FakeLoader, "engine": FakeEngine}[args.role](args.role, args)
    child.run()


if __name__ == "__main__":
    main()
