"""Look up nodes on a GPU: pointers of results, and local ids."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from manyhop.errors import CapacityError
from manyhop.graph import CSC
from manyhop.ranks import cuda
from manyhop.sampling.gpu.kernels.primitives import TILE, fill_indptr
from manyhop.sampling.lookup import ALLOW_EDGES, EdgeLookup, Ints, IntsOfAnySize, build_table, check_pairs
from manyhop.system.triton_launch import Kernel, as_current


class GPUEdgeLookup(EdgeLookup):
    """The set of edges of one type, sorted in device memory; copied to the host on first use there.

    Args:
        csc: the edges.
        device: where to build the table.
        remedy: advice for errors if the table is impossible.

    Raises:
        InputError: ``num_src * num_dst`` exceeds the int64 range.
        CapacityError: the table does not fit in the memory of the device.
    """

    def __init__(self, csc: CSC, device: torch.device, remedy: str = ALLOW_EDGES) -> None:
        check_pairs(csc, remedy)
        if device.type == "cuda":
            needed = 40 * csc.num_edges + 8 * csc.num_src  # sorting takes more than the table
            free = cuda.free_memory(device)
            if needed > free:
                raise CapacityError(
                    f"Telling which pairs of nodes are among {csc.num_edges} edges needs about {needed / 2**30:.2f} "
                    f"GiB on {device}, {free / 2**30:.2f} GiB are free. {remedy}"
                )
        super(EdgeLookup, self).__init__(csc, device, remedy)
        self.begin, self.destination = build_table(csc, device)

    def _build(self) -> tuple[Ints, IntsOfAnySize]:
        return self.begin.cpu().numpy(), self.destination.cpu().numpy()


_MOST_TILES = 64


def fill(columns: npt.NDArray[np.int64], device: torch.device) -> None:
    """Enqueue the counterpart of ``manyhop.sampling.cpu.kernels.hop.fill_indptr`` on the current stream.

    Args:
        columns: ``[n, 4] int64``, as there, with device addresses.
        device: where kernels run.
    """
    if len(columns):
        staging = torch.empty(columns.shape, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        staging.numpy()[:] = columns
        tiles = min(-(-int(columns[:, 2].max() + 1) // int(TILE.value)), _MOST_TILES)
        with as_current(device):
            table = staging.to(device, non_blocking=True)
            _kernel()(device, tiles * len(columns), table.data_ptr(), tiles)


@functools.cache
def _kernel() -> Kernel:
    return Kernel(fill_indptr)
