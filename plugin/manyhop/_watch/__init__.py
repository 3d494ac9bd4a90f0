"""Notices when another rank fails, is gone, is late or leaves early, and ends in an error that names it."""

from manyhop._watch._keeper import announce_end, moved
from manyhop._watch._watch import Iteration, Watch

__all__ = ["Iteration", "Watch", "announce_end", "moved"]
