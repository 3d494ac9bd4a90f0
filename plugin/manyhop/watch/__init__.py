"""Notices when another rank fails, is gone, is late or leaves early, and ends in an error that names it."""

from manyhop.watch.iteration import Iteration, Watch
from manyhop.watch.keeper import announce_end, moved

__all__ = ["Iteration", "Watch", "announce_end", "moved"]
