"""Functions that replace calls of DGL's C++ for graphs on torch tensors.

A graph on the CPU keeps DGL's own index and C++. A graph on CUDA has a ``TorchGraphIndex`` if the installed DGL is a
build for CPUs. Each function here checks its arguments, and calls either DGL's function or one of this package.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
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


_Function = Callable[..., Any]

# DGL's name -> module and function here, of functions whose first argument is a graph.
_BY_GRAPH = {
    "_gspmm": "message_passing.gspmm",
    "_gspmm_hetero": "message_passing.gspmm_hetero",
    "_update_grad_minmax_hetero": "message_passing.update_grad_minmax_hetero",
    "_gsddmm": "message_passing.gsddmm",
    "_gsddmm_hetero": "message_passing.gsddmm_hetero",
    "_edge_softmax_forward": "message_passing.edge_softmax_forward",
    "_edge_softmax_backward": "message_passing.edge_softmax_backward",
}
# Functions of tensors only.
_BY_DEVICE = {
    "_segment_reduce": "message_passing.segment_reduce",
    "_bwd_segment_cmp": "message_passing.bwd_segment_cmp",
    "_scatter_add": "message_passing.scatter_add",
    "_segment_mm": "message_passing.segment_mm",
    "_segment_mm_backward_B": "message_passing.segment_mm_backward_b",
    "_gather_mm": "message_passing.gather_mm",
    "_gather_mm_scatter": "message_passing.gather_mm_scatter",
}


def follow_kernels(module: ModuleType) -> None:
    """Replace the C++ kernels in ``dgl.backend.pytorch.sparse``."""
    for name, place in _BY_GRAPH.items():
        _replace(module, name, place, _is_on_torch)
    for name, place in _BY_DEVICE.items():
        _replace(module, name, place, _any_on_torch)
    for name, takes in {"gspmm": "is_sum", "gsddmm": "is_end_sum", "edge_softmax": "is_softmax"}.items():
        _replace(module, name, f"fused.{name}", functools.partial(_is_fused, f"fused.{takes}"))
    # DGL's decorators use names that torch deprecates, and cast for CUDA only.
    _replace(module, "_cast_if_autocast_enabled", "fused.cast", _any_on_torch)
    _replace(module, "_disable_autocast_if_enabled", "fused.disabled", lambda: on_torch(torch.device("cuda")))


def follow_index(module: ModuleType) -> None:
    """Replace how ``dgl.heterograph_index`` makes graphs."""
    own = module.HeteroGraphIndex
    _replace(module, "create_unitgraph_from_coo", "make.from_coo", _any_on_torch)
    _replace(module, "create_unitgraph_from_csr", "make.from_csr", _any_on_torch)
    _replace(
        module,
        "create_heterograph_from_relations",
        "make.from_relations",
        lambda _, relations, *__: any(map(_is_on_torch, relations)),
    )
    _replace(module, "disjoint_union", "make.disjoint_union", lambda _, graphs: any(map(_is_on_torch, graphs)))
    copy_to = own.copy_to

    def copy_or_convert(self: object, ctx: object) -> object:
        device = sys.modules["dgl.backend"].to_backend_ctx(ctx)
        return _ours("make.from_dgl")(self).to(device) if on_torch(device) else copy_to(self, ctx)

    own.copy_to = functools.update_wrapper(copy_or_convert, copy_to)


def follow_graph(module: ModuleType) -> None:
    """Replace methods of ``dgl.heterograph.DGLGraph`` by shorter ones for graphs on torch tensors."""
    graph = module.DGLGraph
    _shorten(graph, "update_all", "methods.update_all")
    _shorten(graph, "apply_edges", "methods.apply_edges")
    _replace(graph, "local_scope", "methods.LocalScope", lambda g: _is_on_torch(g._graph))
    is_all, every = sys.modules["dgl.base"].is_all, sys.modules["dgl.base"].ALL
    _replace(
        graph, "in_degrees", "methods.in_degrees", lambda g, v=every, etype=None: _is_on_torch(g._graph) and is_all(v)
    )
    _replace(
        graph, "out_degrees", "methods.out_degrees", lambda g, u=every, etype=None: _is_on_torch(g._graph) and is_all(u)
    )


def follow_layer(module: ModuleType, *, name: str, place: str) -> None:
    """Replace ``forward`` of a layer of ``dgl.nn`` where graphs are on torch tensors."""

    def takes(layer: object, graph: object, *args: object, **kwargs: object) -> bool:
        on_torch = hasattr(graph, "_graph") and _is_on_torch(graph._graph)
        return on_torch and bool(_ours(f"methods.is_{place}")(layer, graph, *args, **kwargs))

    _replace(getattr(module, name), "forward", f"methods.{place}", takes)


def _follow(module: ModuleType, **replaced: tuple[str, Callable[..., bool]]) -> None:
    """Replace functions of a module by name: each is given as the replacement and a test of calls for it."""
    for name, (place, takes) in replaced.items():
        _replace(module, name, place, takes)


def _is_mean(g: Any, *args: object) -> bool:
    """Return whether ``dgl.ops.gspmm`` computes a mean. DGL would count degrees each time."""
    return _is_on_torch(g._graph) and bool(_ours("fused.is_mean")(g, *args))


def _is_array_on_cuda(*args: Any) -> bool:
    """Return whether ``dgl.ndarray.empty`` would fail."""
    return len(args) > 2 and args[2].device_type == sys.modules["dgl.ndarray"].gpu(0).device_type and not has_cuda()


def _is_on_torch(gidx: object, *_: object, **__: object) -> bool:
    return type(gidx) is not sys.modules["dgl.heterograph_index"].HeteroGraphIndex


def _any_on_torch(*args: object, **kwargs: object) -> bool:
    return any(isinstance(arg, torch.Tensor) and on_torch(arg.device) for arg in (*args, *kwargs.values()))


FOLLOWED: dict[str, Callable[[ModuleType], None]] = {
    "dgl.heterograph": follow_graph,
    "dgl.heterograph_index": follow_index,
    "dgl.backend.pytorch.sparse": follow_kernels,
    "dgl.nn.pytorch.conv.gatconv": functools.partial(follow_layer, name="GATConv", place="gat"),
    "dgl.nn.pytorch.conv.sageconv": functools.partial(follow_layer, name="SAGEConv", place="sage"),
    "dgl.ops.spmm": functools.partial(_follow, gspmm=("fused.mean", _is_mean)),
    "dgl.frame": functools.partial(_follow, gather_pinned_tensor_rows=("make.pinned_rows", _any_on_torch)),
    "dgl.ndarray": functools.partial(_follow, empty=("index.no_array", _is_array_on_cuda)),
    "dgl.subgraph": functools.partial(
        _follow,
        _CAPI_DGLInSubgraph=("make.in_subgraph", _is_on_torch),
        _CAPI_DGLOutSubgraph=("make.out_subgraph", _is_on_torch),
    ),
    "dgl.transforms.to_block": functools.partial(_follow, _CAPI_DGLToBlock=("make.to_block", _is_on_torch)),
}
"""Module of DGL -> the function that changes it after its import."""


def _replace(owner: object, name: str, place: str, takes: Callable[..., bool]) -> None:
    """Wrap a function of DGL: if ``takes`` is true for a call, it calls ``place``, which the first one imports."""
    own = getattr(owner, name)

    def either(*args: object, **kwargs: object) -> object:
        return (_ours(place) if takes(*args, **kwargs) else own)(*args, **kwargs)

    setattr(owner, name, functools.update_wrapper(either, own))


def _shorten(graph: type, name: str, place: str) -> None:
    """Wrap a method of DGL that returns nothing: it is called if the function returns False."""
    own = getattr(graph, name)

    def either(self: Any, *args: object, **kwargs: object) -> None:
        if not _is_on_torch(self._graph) or not _ours(place)(self, *args, **kwargs):
            own(self, *args, **kwargs)

    setattr(graph, name, functools.update_wrapper(either, own))


@functools.cache
def _ours(place: str) -> _Function:
    module, _, name = place.partition(".")
    function: _Function = getattr(import_module(f"{__package__}.{module}"), name)
    return function


def _is_fused(takes: str, gidx: object, *args: object, **kwargs: object) -> bool:
    return _is_on_torch(gidx) and bool(_ours(takes)(gidx, *args, **kwargs))
