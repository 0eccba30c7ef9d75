"""The law of the next token, and the choice by it: exact with speculation on, whatever the settings."""

from mtp_daemon.engine.sampling.choose import Chooser, Proposal
from mtp_daemon.engine.sampling.drafts import Draft, Verdict, chain

__all__ = ["Chooser", "Draft", "Proposal", "Verdict", "chain"]
