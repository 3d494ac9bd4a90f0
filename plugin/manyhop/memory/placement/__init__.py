"""Placement of data in memory: decided from sizes alone, with reasons. Nothing here loads, measures or communicates.

:func:`decide` places data that CPUs read, :func:`decide_gpu` data that GPUs read.
"""

from manyhop.memory.placement.gpu import GPUPlacement, decide_gpu
from manyhop.memory.placement.host import Choice, Placement, decide
from manyhop.memory.placement.needs import GPU_RESERVE, RESERVE, Hardware, Item
from manyhop.memory.places import Place

__all__ = [
    "GPU_RESERVE",
    "RESERVE",
    "Choice",
    "GPUPlacement",
    "Hardware",
    "Item",
    "Place",
    "Placement",
    "decide",
    "decide_gpu",
]
