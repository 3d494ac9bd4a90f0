"""Detect ranks that fail, hang, are late or leave early, and raise an error that names them."""

from manyhop.ranks.watch.iteration import Iteration, Watch
from manyhop.ranks.watch.monitor import announce_end, moved

__all__ = ["Iteration", "Watch", "announce_end", "moved"]
