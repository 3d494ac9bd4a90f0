"""Detect ranks that fail, hang, are late or leave early, and raise an error that names them."""

from manyhop.ranks.watch.iteration import Iteration, Watch
from manyhop.ranks.watch.monitor import activity, announce_end

__all__ = ["Iteration", "Watch", "activity", "announce_end"]
