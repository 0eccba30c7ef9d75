"""`mtpd uninstall-service`."""

import argparse

from mtp_daemon.services.install import uninstall


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Stop the installed service and remove its unit; configuration and logs stay."


def run(_args: argparse.Namespace) -> int:
    return uninstall()
