"""What can be wrong with bytes from the wire."""


class ProtocolError(Exception):
    """The bytes are not a message of the expected direction; `kind` is stable, the text is for people.

    `ref` is the message's own, where that much of it could be read.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.ref: int | None = None
