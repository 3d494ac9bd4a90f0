"""Join samples with the features of a loader's data, wherever both are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.errors import InputError
from manyhop.features import gather
from manyhop.loading.gpu.samples import upload
from manyhop_pyg.batch.assemble import Rows, begin_data, begin_hetero_data, edge_ids
from manyhop_pyg.batch.assemble_stores import join_hetero_store, join_store
from manyhop_pyg.batch.columns import DataPlan
from manyhop_pyg.batch.joining import Joining
from manyhop_pyg.typing import Batch, Permutation, Sample


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


def join(joining: Joining, outs: Sequence[Sample], times: list[float]) -> tuple[list[Batch], list[Sample], int]:
    """Return batches without edges and labels (:func:`put_edges`), the samples where these are, and the bytes of the
    features.

    A GPU gathers the rows of all of them at once. ``times`` gets when gathering began and when it ended.
    """
    gpu, padding, perm = joining.gpu, joining.padding, joining.sampler.edge_permutation
    for out in outs:
        if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
            raise TypeError(f"'{joining.loader}' found invalid type: '{type(out)}'")
    if gpu is not None:
        taken = [uploaded(out, perm, gpu.device) for out in outs]
        outs, perm = [out for out, _ in taken], taken[0][1]
    if padding is not None:
        outs = padding.pad(outs)
    homogeneous = isinstance(outs[0], SamplerOutput)
    plan = joining.placed if isinstance(joining.placed, DataPlan) else None
    if padding is not None and plan is not None and plan.embeddings:
        raise InputError(
            f"Expected no embedding among the data with pad='auto', got {plan.embeddings[0]!r}: padding nodes have no "
            "rows. Take it out of the data, and call it with batch.n_id."
        )
    if plan is not None:
        rows = Rows(None if gpu is None else gpu.device)
        begin = begin_data if homogeneous else begin_hetero_data
        batches = [begin(plan, out, perm, rows, joining.bounds) for out in outs]
        times.append(time.perf_counter())
        # As many threads as torch's operators have here: all cores in the caller, one in a thread of the loader.
        if gpu is None:
            threads = joining.copy_threads or torch.get_num_threads()
            nbytes = rows.fetch(partial(gather, pool=joining.buffers, threads=threads))
        else:
            start = gpu.start_gather()
            nbytes = rows.fetch(partial(gpu.gather, threads=joining.copy_threads))
            gpu.end_gather(start, len(outs))
    else:
        times.append(time.perf_counter())
        start = None if gpu is None else gpu.start_gather()
        join_stores = join_store if homogeneous else join_hetero_store
        batches, nbytes = join_stores(joining, outs, perm)
        if gpu is not None:
            gpu.end_gather(start, len(outs))
    if padding is not None:
        padding.clear(
            batches,
            outs,
            data=joining.data,
            plan=plan,
            store_size=joining.store_size,
            permuted=joining.sampler.edge_permutation is not None,
        )
    times.append(time.perf_counter())
    return batches, list(outs), nbytes
