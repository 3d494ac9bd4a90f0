"""What the host has made, sent to a GPU without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop_pyg._assemble import edge_ids


def upload(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """The same tensors on the device, by one copy for each dtype, of which the host does not wait."""
    results = list(tensors)
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor is not None and tensor.device != device:
            by_dtype.setdefault(tensor.dtype, []).append(i)
    for dtype, positions in by_dtype.items():
        parts = [tensor for i in positions if (tensor := tensors[i]) is not None]
        sizes = [part.numel() for part in parts]
        staging = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
        torch.cat([part.reshape(-1) for part in parts], out=staging)
        sent = torch.split(staging.to(device, non_blocking=True), sizes)
        for i, part, flat in zip(positions, parts, sent, strict=True):
            results[i] = flat.view(part.shape)
    return results


def to_device(out: Any, perm: Any, device: torch.device) -> SamplerOutput | HeteroSamplerOutput:
    """A sample on the device, with the user's ids of edges, so that no permutation is left to apply."""
    hetero = isinstance(out, HeteroSamplerOutput)
    values: dict[str, Any] = {name: getattr(out, name) for name in ("node", "row", "col", "batch")}
    values |= {"orig_row": out.orig_row, "orig_col": out.orig_col, "metadata": out.metadata}
    values["edge"] = edge_ids(out.edge, perm) if not hetero else out.edge
    if hetero and out.edge is not None:
        values["edge"] = {t: edge_ids(edge, None if perm is None else perm.get(t)) for t, edge in out.edge.items()}
    found: list[Tensor | None] = []
    _each(values, found.append)
    sent = iter(upload(found, device))
    values = _each(values, lambda _: next(sent))
    kind = HeteroSamplerOutput if hetero else SamplerOutput
    return kind(**values, num_sampled_nodes=out.num_sampled_nodes, num_sampled_edges=out.num_sampled_edges)


def _each(value: Any, change: Any) -> Any:
    """The same nested containers with changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_each(part, change) for part in value)
    return value
