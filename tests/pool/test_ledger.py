"""Which events the policies are told, and when: each layer of each forward once."""

from mtp_loader.policy.interface import Event, key_of
from mtp_loader.service.ledger import RequestLedger
from mtp_protocol.expert_messages import Need, Used


def event(layer: int, tokens: int, *experts: int) -> Event:
    return Event(layer, tuple(key_of(layer, e) for e in experts), (), tokens)


def test_each_layer_is_told_once_and_layers_without_a_miss_are_not_forgotten() -> None:
    """By hand: layer 0 passes, layer 1 misses, layer 2 passes and is told of by the forward's end only."""
    ledger = RequestLedger()
    need = Need(1, 1, (5,), (3,), events=((0, 2, (4, 1)), (1, 2, (5, 2))))
    assert ledger.need(need) == [event(0, 2, 1, 4), event(1, 2, 2, 5)]
    assert ledger.need(Need(2, 1, (5,), (3,))) == []  # sent again
    routing = tuple((layer, ((2, 5), (5, 2)), ((0.5, 0.5), (0.5, 0.5))) for layer in range(3))
    assert ledger.open_requests == 4
    assert ledger.used(Used(1, 1, (7, 8), routing, 5, 1, told=2)) == [event(2, 2, 2, 5)]
    assert (ledger.requests, ledger.hits, ledger.misses, ledger.open_requests) == (6, 5, 1, 0)


def test_a_dead_engines_forward_leaves_no_open_requests() -> None:
    """Its report will never come: requests == hits + misses all the same."""
    ledger = RequestLedger()
    ledger.need(Need(1, 0, (5,), (), events=((0, 1, (5, 2)),)))
    ledger.abandon()
    assert ledger.open_requests == 0 == ledger.requests
