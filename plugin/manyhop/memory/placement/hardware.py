"""What the machines of a GPU run have."""

from __future__ import annotations

from dataclasses import dataclass

from manyhop.arguments import at_least_one
from manyhop.errors import InputError
from manyhop.memory.placement.item import RESERVE

GPU_RESERVE = 0.3
"""This share of the free memory of a GPU is left for the model, its activations and the batches on their way."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is for the ranks of a run, which have one GPU each. Where ranks differ, the least counts.

    Raises:
        InputError: numbers that make no sense.
    """

    gpu_memory: int
    """Free bytes of each GPU."""
    host_memory: int
    """Free bytes of each node."""
    gpus_per_node: int = 1
    """GPUs of a node that ranks use; as many as it has ranks."""
    num_nodes: int = 1
    """Nodes (machines)."""
    pinnable: int | None = None
    """Bytes that a process may page-lock; ``None``: no limit but the memory of the node (``ulimit -l`` is none for CUDA
    on Linux)."""
    peer_access: bool = False
    """Whether each GPU of a node reads the memory of all others of that node."""
    wholegraph: bool = False
    """Whether pylibwholegraph is installed."""
    cugraph: bool = False
    """Whether pylibcugraph, and what joins its GPUs, is installed."""
    together: bool = False
    """Whether all ranks make the loader together (``distributed=True``), which rows that are spread over them need."""

    def __post_init__(self) -> None:
        at_least_one(gpu_memory=self.gpu_memory, host_memory=self.host_memory)
        at_least_one(gpus_per_node=self.gpus_per_node, num_nodes=self.num_nodes)
        if self.pinnable is not None and self.pinnable < 0:
            raise InputError(f"Expected pinnable to be at least 0, or None, got {self.pinnable}.")

    @property
    def world_size(self) -> int:
        """Number of ranks, and of GPUs."""
        return self.gpus_per_node * self.num_nodes

    @property
    def gpu_usable(self) -> int:
        """Bytes of each GPU that may be given out."""
        return int(self.gpu_memory * (1 - GPU_RESERVE))

    @property
    def host_usable(self) -> int:
        """Bytes of each node that may be given out."""
        return int(self.host_memory * (1 - RESERVE))
