"""How long clients waited for a token while the service was whole: what the soak calls a pause. Pure."""

from dataclasses import dataclass, field

# No process's death may cost a client more.
LONGEST_S = 10.0


@dataclass
class Pauses:
    """A pause begins with a token, a silence's end or the last thing done to the service, whichever is latest: a second
    kill during the recovery from the first begins it anew. `waited_s` is the whole time without a token, kills or not.
    """

    longest_s: float = 0.0
    too_long: list[tuple[float, float]] = field(default_factory=list)
    _since: float = 0.0
    _token_at: float = 0.0

    def asked(self, at: float) -> None:
        """Clients ask again, after a silence."""
        self._since = self._token_at = at

    def disturbed(self, at: float) -> None:
        """Something was killed or woken at this moment. What was waited for until then counts."""
        self._end(at)

    def token(self, at: float) -> None:
        self._end(at)
        self._token_at = max(self._token_at, at)

    def waited_s(self, now: float) -> float:
        """Since the last token, or since clients ask."""
        return now - self._token_at

    def _end(self, at: float) -> None:
        pause = at - self._since
        self._since = max(self._since, at)
        self.longest_s = max(self.longest_s, pause)
        if pause > LONGEST_S:
            self.too_long.append((at, pause))
