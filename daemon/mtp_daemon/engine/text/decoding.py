"""Token ids to text one token at a time, so that the parts joined are the whole's decoding.

A decoder may look at its neighbours: bytes of one character spread over tokens, a space dropped at the start. So each
step decodes a window that begins a step earlier and takes what was added (the offsets of Hugging Face's
text-generation-inference). A window that ends in U+FFFD is taken for a character whose bytes are still to come.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, so at most three tokens wait for its last. Later it is broken for good.
LONGEST_WAIT = 3


class IncrementalDecoding:
    """`text` is the text of `ids[:complete]`; ids after those wait for the rest of their character."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window = 0
        self.ids: list[int] = []
        self.complete = 0
        self.text = ""

    def add(self, token: int) -> bool:
        """Whether `text` and `complete` went on."""
        self.ids.append(token)
        end = len(self.ids)
        grown = self._decode(self.ids[self._window :])
        if grown.endswith(REPLACEMENT):
            # Broken bytes are let go once they cannot become a character any more; the last few still might.
            end -= LONGEST_WAIT
            if end <= self.complete:
                return False
            grown = self._decode(self.ids[self._window : end])
        self._take(grown, end)
        return True

    def rest(self) -> str:
        """The text of the ids that still wait, when no more will come: broken characters as U+FFFD."""
        if self.complete == len(self.ids):
            return ""
        whole = self._decode(self.ids)
        if whole.startswith(self.text):
            return whole[len(self.text) :]
        return self._decode(self.ids[self.complete :])

    def _take(self, grown: str, end: int) -> None:
        before = self._decode(self.ids[self._window : self.complete]) if self.complete > self._window else ""
        self.text += grown[len(before) :]
        # A window that began with ids without text would be taken for the start of a text, where decoders drop a space.
        if len(grown) > len(before):
            self._window = self.complete
        self.complete = end
