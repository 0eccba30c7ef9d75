"""Depth controllers: how many tokens to draft in a round."""

from mtp_daemon.engine.depth.interface import DepthController, RoundTimes
from mtp_daemon.engine.depth.settings import DepthSettings, make_controller

__all__ = ["DepthController", "DepthSettings", "RoundTimes", "make_controller"]
