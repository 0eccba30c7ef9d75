"""Sums over all answers since the front started: what each answer's own statistics say, added up."""

from collections.abc import Mapping

from mtp_protocol import engine_messages as e

# Of an answer's statistics, those that may be added. Seconds among them.
SUMMED = ("hits", "misses", "bytes_read", "stall_s", "rounds", "drafted", "accepted", "prefill_s", "decode_s")
# Forwards over more tokens than a round of speculation has are prompts' chunks, of any length: counted together.
_COUNTED_APART = 16
_MORE = "more"


class Totals:
    """Owned by the front's loop, which feeds it everything the engine says. They outlive engines and never fall."""

    def __init__(self) -> None:
        self.tokens = 0
        self.prompt_tokens = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.unions: dict[str, tuple[int, int]] = {}  # tokens of a forward -> layers run, distinct experts needed

    def hear(self, message: e.FromEngine) -> None:
        match message:
            case e.Tokens():
                self.tokens += len(message.ids)
            case e.Finished():
                self.prompt_tokens += message.usage.prompt_tokens
                for name in SUMMED:
                    value = message.stats.get(name)
                    if isinstance(value, int | float):
                        self.sums[name] += value
                self._add_unions(message.stats.get("unions", {}))
            case _:
                pass

    def _add_unions(self, unions: Mapping[str, Mapping[str, int]]) -> None:
        for tokens, sizes in unions.items():
            label = tokens if int(tokens) <= _COUNTED_APART else _MORE
            layers, experts = self.unions.get(label, (0, 0))
            needed = sum(int(size) * times for size, times in sizes.items())
            self.unions[label] = layers + sum(sizes.values()), experts + needed
