"""Sums over all answers since the front started: what each answer's own statistics say, added up."""

from mtp_protocol import engine_messages as e

# Of an answer's statistics, those that may be added. Seconds among them.
SUMMED = ("hits", "misses", "bytes_read", "stall_s", "rounds", "drafted", "accepted", "prefill_s", "decode_s")


class Totals:
    """Owned by the front's loop, which feeds it everything the engine says. They outlive engines and never fall."""

    def __init__(self) -> None:
        self.tokens = 0
        self.prompt_tokens = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)

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
            case _:
                pass
