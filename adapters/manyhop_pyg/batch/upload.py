"""Samples of the host on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.loading.gpu.upload import upload
from manyhop_pyg.batch.assemble import edge_ids
from manyhop_pyg.typing import Permutation, Sample


def uploaded(out: Sample, perm: Permutation, device: torch.device) -> tuple[Sample, Permutation]:
    """Return a sample that the CPU has made on the device, and what its edges are permuted by; others as they were."""
    node = out.node
    some = next(iter(node.values()), None) if isinstance(node, dict) else node
    if some is None or some.device == device:
        return out, perm
    return to_device(out, perm, device), None


def to_device(out: Sample, perm: Permutation, device: torch.device) -> Sample:
    """Return a sample on the device, with the user's ids of edges, so that no permutation is left to apply."""
    hetero = isinstance(out, HeteroSamplerOutput)
    values: dict[str, object] = {name: getattr(out, name) for name in ("node", "row", "col", "edge", "batch")}
    values |= {"orig_row": out.orig_row, "orig_col": out.orig_col, "metadata": out.metadata}
    if not hetero:
        assert perm is None or isinstance(perm, Tensor)
        values["edge"] = edge_ids(out.edge, perm)
    else:
        assert perm is None or isinstance(perm, Mapping)
        if out.edge is not None:
            values["edge"] = {t: edge_ids(edge, None if perm is None else perm.get(t)) for t, edge in out.edge.items()}
    found: list[Tensor | None] = []
    _each(values, found.append)
    sent = iter(upload(found, device))
    values = _each(values, lambda _: next(sent))
    kind = HeteroSamplerOutput if hetero else SamplerOutput
    return kind(**values, num_sampled_nodes=out.num_sampled_nodes, num_sampled_edges=out.num_sampled_edges)


def _each(value: Any, change: Any) -> Any:
    """Return the same nested containers with changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_each(part, change) for part in value)
    return value
