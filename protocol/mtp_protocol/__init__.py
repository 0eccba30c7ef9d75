"""The wire contract of mtpd: messages, their codec, and the shapes both ends of the pool share.

Beside it what every process and command does alike (`arguments`, `housekeeping`), as all of them import this package.

Imports nothing else of the project. `docs/protocol.md` is the document; `codec.MAJOR` and `codec.MINOR` its version.
"""
