"""What can go wrong in the loader's code, as one tree of three kinds.

    LoaderError
    ├── UserError              asked for something that cannot be; the text says what to do instead
    │   ├── NoSuchModel        neither a directory nor an id in the local cache
    │   ├── NotStreamable      no Mixture-of-Experts model we can stream
    │   └── BadRequest         an option's value
    ├── EnvironmentFailure     the machine's files, disk or memory
    │   ├── DamagedCheckpoint  a file is cut, changed, missing, or lies about itself
    │   ├── ReadFailed         an expert's bytes could not be read, or are not what they should be
    │   └── DiskFull
    └── LoaderBug              ours: a broken assumption

Exit codes of `mtp-loader`: `exit_code` of each class.
"""

from pathlib import Path


class LoaderError(Exception):
    """Base of everything below; the text is one line for a person."""

    exit_code = 1


class UserError(LoaderError):
    """The request cannot be met as it was made."""

    exit_code = 2


class NoSuchModel(UserError):
    """The model's name is neither a directory nor in the local Hugging Face cache."""


class NotStreamable(UserError):
    """The checkpoint is sound, but its experts cannot be streamed."""


class BadRequest(UserError):
    """An option or argument has a value that cannot be used."""


class EnvironmentFailure(LoaderError):
    """Files, disk or memory failed us."""


class DamagedCheckpoint(EnvironmentFailure):
    """A file of a checkpoint or packed store is not what it says; `file` names it."""

    def __init__(self, file: Path | str, text: str) -> None:
        super().__init__(f"{file}: {text}")
        self.file = Path(file)


class ReadFailed(EnvironmentFailure):
    """One expert could not be read; the text names the file and the offset. Others go on."""


class DiskFull(EnvironmentFailure):
    """The disk has no room for what is about to be written."""


class LoaderBug(LoaderError):
    """A broken assumption of our own."""
