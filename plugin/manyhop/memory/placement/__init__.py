"""Which memory for what: decided from sizes alone, with reasons. Nothing here loads, measures or communicates.

:func:`decide` places what CPUs read, :func:`decide_gpu` what GPUs read.
"""

from manyhop.memory.placement.gpu import GPUChoice, GPUMode, GPUPlacement, decide_gpu
from manyhop.memory.placement.host import Choice, Place, Placement, decide
from manyhop.memory.placement.needs import GPU_RESERVE, RESERVE, GPUPlace, Hardware, Item

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
