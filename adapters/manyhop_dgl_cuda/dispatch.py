"""Functions that replace calls of DGL's C++ for graphs on torch tensors.

A graph on the CPU keeps DGL's own index and C++. A graph on CUDA has a ``TorchGraphIndex`` if the installed DGL is a
build for CPUs. A replaced function calls one of this package where that applies, otherwise DGL's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

_cpu_too = False


@contextmanager
def graphs_of_cpu_too() -> Iterator[None]:
    """Use torch tensors for graphs on the CPU, too, in tests whose CPU stands for a GPU."""
    global _cpu_too
    before, _cpu_too = _cpu_too, True
    try:
        yield
    finally:
        _cpu_too = before


def on_torch(device: torch.device) -> bool:
    """Return whether graphs on a device are on torch tensors: on CUDA, if the installed DGL is a build for CPUs."""
    return (device.type == "cuda" and not has_cuda()) or (device.type == "cpu" and _cpu_too)


@functools.lru_cache(maxsize=1)
def has_cuda() -> bool:
    """Return whether the installed DGL is a build with CUDA. DGL has been imported."""
    return bool(sys.modules["dgl.ndarray"].gpu(0).exist)


def _is_on_torch(gidx: object, *_: object, **__: object) -> bool:
    return type(gidx) is not sys.modules["dgl.heterograph_index"].HeteroGraphIndex


def _has_graph_on_torch(g: Any, *_: object, **__: object) -> bool:
    return _is_on_torch(g._graph)


def _is_layer_on_torch(layer: object, graph: object, *_: object, **__: object) -> bool:
    return hasattr(graph, "_graph") and _is_on_torch(graph._graph)


def _some_are_on_torch(_: object, graphs: Iterable[object], *__: object) -> bool:
    return any(map(_is_on_torch, graphs))


def _any_on_torch(*args: object, **kwargs: object) -> bool:
    return any(isinstance(arg, torch.Tensor) and on_torch(arg.device) for arg in (*args, *kwargs.values()))


def _goes_to_torch(_: object, ctx: object) -> bool:
    return on_torch(sys.modules["dgl.backend"].to_backend_ctx(ctx))


def _is_array_on_cuda(*args: Any) -> bool:
    """Return whether ``dgl.ndarray.empty`` would fail."""
    return len(args) > 2 and args[2].device_type == sys.modules["dgl.ndarray"].gpu(0).device_type and not has_cuda()


_BY_GRAPH = (
    *("gspmm", "gspmm_hetero", "update_grad_minmax_hetero", "gsddmm", "gsddmm_hetero"),
    *("edge_softmax_forward", "edge_softmax_backward"),
)
_BY_TENSORS = ("segment_reduce", "bwd_segment_cmp", "scatter_add", "segment_mm", "gather_mm", "gather_mm_scatter")

_REPLACED: dict[str, dict[str, tuple[str, Callable[..., bool]]]] = {
    "dgl.backend.pytorch.sparse": {
        **{f"_{name}": (f"message_passing.{name}", _is_on_torch) for name in _BY_GRAPH},
        **{f"_{name}": (f"message_passing.{name}", _any_on_torch) for name in _BY_TENSORS},
        "_segment_mm_backward_B": ("message_passing.segment_mm_backward_b", _any_on_torch),
        **{name: (f"fused.{name}", _is_on_torch) for name in ("gspmm", "gsddmm", "edge_softmax")},
        # DGL's decorators use names that torch deprecates, and cast for CUDA only.
        "_cast_if_autocast_enabled": ("fused.cast", _any_on_torch),
        "_disable_autocast_if_enabled": ("fused.disabled", lambda: on_torch(torch.device("cuda"))),
    },
    "dgl.heterograph_index": {
        "create_unitgraph_from_coo": ("make.from_coo", _any_on_torch),
        "create_unitgraph_from_csr": ("make.from_csr", _any_on_torch),
        "create_heterograph_from_relations": ("make.from_relations", _some_are_on_torch),
        "disjoint_union": ("make.disjoint_union", _some_are_on_torch),
        "HeteroGraphIndex.copy_to": ("make.copy_to", _goes_to_torch),
    },
    "dgl.heterograph": {
        f"DGLGraph.{name}": (f"methods.{place}", _has_graph_on_torch)
        for name, place in {
            "update_all": "update_all",
            "apply_edges": "apply_edges",
            "local_scope": "LocalScope",
            "in_degrees": "in_degrees",
            "out_degrees": "out_degrees",
        }.items()
    },
    "dgl.nn.pytorch.conv.gatconv": {"GATConv.forward": ("methods.gat", _is_layer_on_torch)},
    "dgl.nn.pytorch.conv.sageconv": {"SAGEConv.forward": ("methods.sage", _is_layer_on_torch)},
    "dgl.ops.spmm": {"gspmm": ("fused.mean", _has_graph_on_torch)},
    "dgl.frame": {"gather_pinned_tensor_rows": ("make.pinned_rows", _any_on_torch)},
    "dgl.ndarray": {"empty": ("index.no_array", _is_array_on_cuda)},
    "dgl.subgraph": {
        "_CAPI_DGLInSubgraph": ("make.in_subgraph", _is_on_torch),
        "_CAPI_DGLOutSubgraph": ("make.out_subgraph", _is_on_torch),
    },
    "dgl.transforms.to_block": {"_CAPI_DGLToBlock": ("make.to_block", _is_on_torch)},
}
"""Module of DGL -> name in it -> the function here, and a test of calls for it. It may return ``NotImplemented``."""


def follow(module: ModuleType) -> None:
    """Replace functions of a module of DGL after its import; what replaces them is imported by the first call."""
    for path, (place, takes) in _REPLACED[module.__name__].items():
        owner, _, name = path.rpartition(".")
        _replace(getattr(module, owner) if owner else module, name, place, takes)


FOLLOWED: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(_REPLACED, follow)
"""Module of DGL -> the function that changes it after its import."""


def _replace(owner: object, name: str, place: str, takes: Callable[..., bool]) -> None:
    own = getattr(owner, name)

    def either(*args: object, **kwargs: object) -> object:
        if takes(*args, **kwargs):
            found = _ours(place)(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return own(*args, **kwargs)

    setattr(owner, name, functools.update_wrapper(either, own))


@functools.cache
def _ours(place: str) -> Callable[..., object]:
    module, _, name = place.partition(".")
    function: Callable[..., object] = getattr(import_module(f"{__package__}.{module}"), name)
    return function
