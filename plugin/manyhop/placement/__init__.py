"""Which memory for what: decided from sizes alone, with reasons. Nothing here loads, measures or communicates.

:func:`decide` places what CPUs read, :func:`decide_gpu` what GPUs read.
"""

from manyhop.placement._gpu import GPUChoice, GPUMode, GPUPlacement, decide_gpu
from manyhop.placement._gpu_hardware import GPU_RESERVE, Hardware
from manyhop.placement._gpu_needs import GPUPlace
from manyhop.placement._host import Choice, Place, Placement, decide
from manyhop.placement._item import RESERVE, Item

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
