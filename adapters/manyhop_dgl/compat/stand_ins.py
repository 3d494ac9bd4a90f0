"""The names of ``dgl.graphbolt`` that DGL itself uses, and the modules that newer versions of torchdata lack.

GraphBolt itself is ``manyhop_dgl.graphbolt``. ``torchdata.datapipes`` contained torch's pipes, and
``torchdata.dataloader2.graph`` functions on chains of pipes. GraphBolt of DGL 2.1 and users' stages for it use both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

import torch
import torch.utils.data.datapipes.iter
import torch.utils.data.datapipes.map
from torch import Tensor
from torch.utils import data
from torch.utils.data.graph import traverse_dps

__all__ = ["FusedCSCSamplingGraph", "etype_tuple_to_str", "expand_indptr"]


class FusedCSCSamplingGraph:
    """A class without instances, for ``isinstance(g, dgl.graphbolt.FusedCSCSamplingGraph)``."""

    def __init__(self) -> None:
        raise TypeError(
            "GraphBolt's graphs need its C++ library. Use manyhop_dgl.graphbolt.fused_csc_sampling_graph(...)."
        )


def expand_indptr(
    indptr: Tensor, dtype: torch.dtype | None = None, node_ids: Tensor | None = None, output_size: int | None = None
) -> Tensor:
    """Return the column of each entry of a CSC matrix.

    Args:
        indptr: ``[num_columns + 1]``, where each column's entries begin.
        dtype: of the result; that of ``node_ids`` if left out.
        node_ids: ``[num_columns]``: the name of each column; default: its position.
        output_size: the number of entries, if it is known.

    Returns:
        ``[num_entries]``.
    """
    if node_ids is None:
        if dtype is None:
            raise ValueError("Expected dtype or node_ids: one of them says which dtype the result has.")
        node_ids = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    columns = torch.repeat_interleave(node_ids, indptr.diff(), output_size=output_size)
    return columns if dtype is None else columns.to(dtype)


def etype_tuple_to_str(c_etype: tuple[str, str, str]) -> str:
    """Join an edge type: ``("user", "likes", "item")`` -> ``"user:likes:item"``."""
    if not isinstance(c_etype, tuple) or len(c_etype) != 3:
        raise TypeError(f"Expected an edge type (source, relation, destination), got {c_etype!r}.")
    return ":".join(c_etype)


Graph = Mapping[int, tuple[object, Any]]


def list_dps(graph: Graph) -> list[object]:
    """Return all pipes of a graph that ``traverse_dps`` has made, each once, the last one first."""
    found: dict[int, object] = {}

    def visit(part: Graph) -> None:
        for key, (pipe, before) in part.items():
            if key not in found:
                found[key] = pipe
                visit(before)

    visit(graph)
    return list(found.values())


def find_dps(graph: Graph, dp_type: type[object]) -> list[object]:
    """Return the pipes of exactly one type in a graph that ``traverse_dps`` has made."""
    return [pipe for pipe in list_dps(graph) if type(pipe) is dp_type]


def _pipes(module: ModuleType, base: type[object]) -> dict[str, object]:
    return {name: getattr(module, name) for name in module.__all__} | {base.__name__: base}


_NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "torchdata.datapipes": lambda: {"functional_datapipe": data.functional_datapipe},
    "torchdata.datapipes.iter": lambda: _pipes(torch.utils.data.datapipes.iter, data.IterDataPipe),
    "torchdata.datapipes.map": lambda: _pipes(torch.utils.data.datapipes.map, data.MapDataPipe),
    "torchdata.dataloader2": dict,
    "torchdata.dataloader2.graph": lambda: {
        "find_dps": find_dps,
        "list_dps": list_dps,
        "traverse_dps": traverse_dps,
    },
}


def spec_of(name: str) -> ModuleSpec | None:
    """Return how to load one of the modules; ``None`` for any other."""
    return spec_from_loader(name, _Loader(), is_package=True) if name in _NAMES else None


class _Loader(Loader):
    """Fills a module with the names that are served."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        names = _NAMES[module.__name__]()
        vars(module).update(names, __all__=sorted(names), __doc__=__doc__)

        def missing(attribute: str) -> object:
            raise AttributeError(
                f"{module.__name__}.{attribute} does not exist in the installed torchdata. manyhop_dgl "
                f"provides {', '.join(sorted(names)) or 'submodules only'}. Write the stage with those.",
                name=attribute,
                obj=module,
            )

        vars(module)["__getattr__"] = missing
