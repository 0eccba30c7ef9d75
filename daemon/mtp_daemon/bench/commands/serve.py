"""`mtp-bench serve [MODEL]`: many clients at once, and what the front adds.

Requests arrive as a Poisson process at --rate a second in all, whether or not earlier ones have ended (an open loop: a
service that falls behind shows it), from --clients clients, each a connection of its own on this machine. The service
decodes one request at a time, clients in turn. It is started on MODEL for the occasion, or --run-dir names one that
runs. The run ends after --requests answers or --limit-s seconds; what is open then is cancelled and counted as cut.

  mtp-bench serve demo
  mtp-bench serve DIR --clients 16 --rate 0.5 --prompt-tokens 32 512 --tokens 64
  mtp-bench serve --run-dir "$XDG_RUNTIME_DIR/mtpd"
"""

import argparse
import time
from contextlib import AbstractContextManager
from pathlib import Path

from mtp_daemon.bench.footprint import cpu_seconds
from mtp_daemon.bench.load_client import Asked, LoadClient
from mtp_daemon.bench.load_plan import poisson
from mtp_daemon.bench.load_summary import FrontCost, chart, summary, text
from mtp_daemon.bench.report import Report, add_output, emit
from mtp_daemon.bench.serving import Service, running, serving
from mtp_daemon.bench.steps import Steps
from mtp_daemon.errors import EnvironmentFailure
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.arguments import real, whole

_MOST_CLIENTS = 128
_MOST_REQUESTS = 10_000
_MOST_S = 3600.0
_LEAVE_S = 15.0
_IDLE_S = 2.0  # a look at what the front uses when nothing is asked of it
_START_S = 0.2  # for all clients to be connected before the first request is due


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="demo", help="what a service of our own serves (demo)")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="use the service that runs there instead")
    parser.add_argument("--clients", type=whole(1, _MOST_CLIENTS), default=4, help="(4)")
    parser.add_argument("--rate", type=real(1e-3, 1e4), default=1.0, help="requests a second, of all clients (1)")
    parser.add_argument("--requests", type=whole(1, _MOST_REQUESTS), default=20, help="(20)")
    parser.add_argument("--prompt-tokens", type=whole(1, 1 << 20), nargs="+", default=[16, 64], help="lengths (16 64)")
    parser.add_argument("--tokens", type=whole(1, 1 << 20), default=32, help="of each answer (32)")
    parser.add_argument("--limit-s", type=real(0.1, _MOST_S), default=120.0, help="longest the load may last (120)")
    parser.add_argument("--seed", type=whole(0, 1 << 62), default=0, help="the same seed, the same arrivals (0)")
    parser.add_argument("--pool", default="50%", help="of a service of our own (50%%)")
    parser.add_argument("--serve-flag", action="append", default=[], help="one more flag for mtpd serve; repeat it")
    add_output(parser, "how soon answers had their first token")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a request failed."""
    if args.run_dir is not None:
        place: AbstractContextManager[Service] = running(args.run_dir)
    else:
        place = serving(resolve_model(args.model), "--pool", args.pool, *args.serve_flag)
    with place as service:
        service.answer(service.prompt(max(args.prompt_tokens)), args.tokens)  # the first answer warms everything
        asked, cost = load(args, service)
    result = summary(asked, cost)
    emit(args, "serve", Report(result, text(result), {"ttft": chart(asked)}))
    return 0 if set(result["outcomes"]) <= {"length", "stop", "cut"} else 1


def load(args: argparse.Namespace, service: Service) -> tuple[list[Asked], FrontCost]:
    """All requests, in the order they were due; raises EnvironmentFailure where a client lost the service."""
    arrivals = poisson(args.rate, args.requests, args.clients, args.prompt_tokens, args.seed)
    prompt = service.prompt(max(args.prompt_tokens))
    front = service.client.welcome.pid
    idle = cpu_seconds(front)
    time.sleep(_IDLE_S)
    before = cpu_seconds(front)
    began = time.monotonic() + _START_S
    until = began + args.limit_s
    clients = [
        LoadClient(service.run_directory, prompt, [a for a in arrivals if a.client == i], args.tokens, began, until)
        for i in range(args.clients)
    ]
    for client in clients:
        client.start()
    _watch(clients, args.requests, until)
    cost = FrontCost(cpu_seconds(front) - before, time.monotonic() - began, (before - idle) / _IDLE_S)
    if lost := next((c.error for c in clients if c.error is not None), None):
        raise EnvironmentFailure(f"a client lost the service: {lost}")
    return sorted((a for c in clients for a in c.asked), key=lambda a: a.due_s), cost


def _watch(clients: list[LoadClient], requests: int, until: float) -> None:
    """Until all have ended; each client ends by itself when time is up."""
    steps = Steps(requests)
    shown = 0
    for client in clients:
        while client.is_alive():
            if time.monotonic() > until + _LEAVE_S:
                raise EnvironmentFailure("a client of the load does not end")
            client.join(0.1)
            done = sum(a.outcome != "cut" for c in clients for a in list(c.asked))
            for number in range(shown, done):
                steps.begin(f"{number + 1} answered")
            shown = done
    steps.end()
