"""Which memory for what: decided from sizes alone, with reasons. Nothing here loads, measures or communicates.

:func:`decide` places what CPUs read, :func:`decide_gpu` what GPUs read.
"""

from manyhop.memory.placement.gpu import GPUChoice, GPUMode, GPUPlacement, decide_gpu
from manyhop.memory.placement.hardware import GPU_RESERVE, Hardware
from manyhop.memory.placement.host import Choice, Place, Placement, decide
from manyhop.memory.placement.item import RESERVE, GPUPlace, Item

__all__ = [
    "GPU_RESERVE",
    "RESERVE",
    "Choice",
    "GPUChoice",
    "GPUMode",
    "GPUPlace",
    "GPUPlacement",
    "Hardware",
    "Item",
    "Place",
    "Placement",
    "decide",
    "decide_gpu",
]
