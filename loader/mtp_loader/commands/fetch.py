"""Download a model from the Hugging Face hub into the local cache. Nothing else of mtpd ever downloads.

Afterwards the id can be given wherever a model is asked for. Interrupted downloads go on when run again.
"""

import argparse
import os

from mtp_loader.errors import BadRequest, EnvironmentFailure
from mtp_loader.store.resolve import HUB_ID

_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.tiktoken", "*.jinja", "LICENSE*"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument("id", metavar="ID", help="owner/name, as on huggingface.co")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit instead of the main branch")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    if not HUB_ID.fullmatch(args.id):
        raise BadRequest(f"{args.id}: not a Hugging Face id (owner/name)")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise EnvironmentFailure("HF_HUB_OFFLINE is set, which forbids downloads; unset it to fetch a model")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    # The hub's base classes are its HTTP library's error, whichever that is, and OSError: a lost connection is one.
    transport: tuple[type[Exception], ...] = HfHubHTTPError.__bases__
    try:
        print(snapshot_download(args.id, revision=args.revision, allow_patterns=_PATTERNS))
    except RepositoryNotFoundError as error:
        raise BadRequest(f"{args.id}: no such model on huggingface.co, or it is private (HF_TOKEN)") from error
    except (*transport, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()
        raise EnvironmentFailure(f"{args.id}: cannot be downloaded: {reason[0] if reason else error!r}") from error
    return 0
