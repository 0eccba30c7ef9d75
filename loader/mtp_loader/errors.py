"""Everything that mtp_loader raises on purpose.

LoaderError
├── UserMistake        asked for something that cannot be: answered with what to do instead
│   └── PolicyUnknown
├── EnvironmentFailure the machine or a file let us down: names the file, the size it has and should have
└── InternalFault      a rule of ours is broken: the process must not go on
"""


class LoaderError(Exception):
    """Root of the tree; the text is for people."""


class UserMistake(LoaderError):
    pass


class EnvironmentFailure(LoaderError):
    pass


class InternalFault(LoaderError):
    pass


class PolicyUnknown(UserMistake):
    pass
