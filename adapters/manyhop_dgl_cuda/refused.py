"""The error for what only DGL's C++ can do, when it is given a graph on torch tensors."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import dgl
import torch

from manyhop.errors import MissingExtraError

_INSTEAD = {
    "sample_neighbors": "sample with manyhop_dgl.NeighborSampler or manyhop_dgl.sample_tensors, which do it on the GPU",
    "sample_neighbors_fused": "sample with manyhop_dgl.NeighborSampler, which does it on the GPU",
    "sample_labors": "sample with manyhop_dgl.LaborSampler, which does it on the GPU",
}


class NoCUDABuildError(MissingExtraError):
    """Something that only DGL's C++ can do was asked for on a GPU, but the installed build of DGL is for CPUs only."""

    def __init__(self, what: str, device: torch.device) -> None:
        instead = _INSTEAD.get(what.rpartition(".")[2], "move the graph to the CPU and the result back: g.to('cpu')")
        ImportError.__init__(
            self,
            f"{what} needs DGL's C++, but dgl {dgl.__version__} is a build for CPUs, as all on PyPI are, and got a "
            f"graph on {device}. There, message passing, layers, degrees, subgraphs and blocks work. For this, "
            f"{instead}.",
        )


def no_array(shape: object, dtype: object, ctx: Any) -> NoReturn:
    """What ``dgl.ndarray.empty`` does on a GPU."""
    refuse(torch.device("cuda", ctx.device_id))


def refuse(device: torch.device) -> NoReturn:
    """Raise :class:`NoCUDABuildError`, naming the function of DGL that the user's code called."""
    frame, what = inspect.currentframe(), "This"
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("dgl", "manyhop_dgl"):
            break
        if module.startswith("dgl.") and not frame.f_code.co_name.startswith("_"):
            what = f"dgl.{frame.f_code.co_name}"
        frame = frame.f_back
    raise NoCUDABuildError(what, device)
