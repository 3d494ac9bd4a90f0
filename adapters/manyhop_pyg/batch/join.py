"""Join samples with the features of a loader's data, wherever both are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.features import gather
from manyhop_pyg.batch.assemble import Rows, begin_data, begin_hetero_data
from manyhop_pyg.batch.assemble_stores import join_hetero_store, join_store
from manyhop_pyg.batch.edge_index import wrap_edges
from manyhop_pyg.batch.plan import DataPlan
from manyhop_pyg.batch.upload import take_over
from manyhop_pyg.loaders.columns import DataColumns
from manyhop_pyg.loaders.view import LoaderView


def join(loader: LoaderView, out: Any, times: list[float]) -> tuple[Any, Any, int]:
    """The batch without labels, the sample where the batch is, and the bytes of the features.

    ``times`` gets when gathering began and when it ended.
    """
    (batch,), (out,), nbytes = join_all(loader, [out], times)
    return batch, out, nbytes


def join_all(loader: LoaderView, outs: Sequence[Any], times: list[float]) -> tuple[list[Any], list[Any], int]:
    """The same for several batches; a GPU gathers the rows of all of them at once."""
    perm, gpu, padding = loader._edge_permutation(), loader._gpu, loader._padding
    for out in outs:
        if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
            raise TypeError(f"'{type(loader).__name__}' found invalid type: '{type(out)}'")
    if gpu is not None:
        taken = [take_over(out, perm, gpu.device) for out in outs]
        outs, perm = [out for out, _ in taken], taken[0][1]
    if padding is not None:
        outs = padding.pad(outs, loader._stats)
    homogeneous = isinstance(outs[0], SamplerOutput)
    plan = _plan(loader) if isinstance(loader.data, Data | HeteroData) else None
    if plan is not None:
        rows = Rows(None if gpu is None else gpu.device)
        begin: Any = begin_data if homogeneous else begin_hetero_data
        batches = [begin(plan, out, perm, rows, loader._bounds) for out in outs]
        times.append(time.perf_counter())
        # As many threads as torch's operators have here: all cores in the caller, one in a thread of the loader.
        if gpu is None:
            threads = loader._copy_threads or torch.get_num_threads()
            nbytes = rows.fetch(partial(gather, pool=loader._buffers, threads=threads))
        else:
            start = gpu.start_gather()
            nbytes = rows.fetch(partial(gpu.gather, threads=loader._copy_threads))
            gpu.end_gather(start, len(outs))
    else:
        times.append(time.perf_counter())
        start = None if gpu is None else gpu.start_gather()
        if homogeneous:
            batches, nbytes = join_store(loader, outs, perm)
        else:
            batches, nbytes = join_hetero_store(loader, outs, perm)
        if gpu is not None:
            gpu.end_gather(start, len(outs))
    if padding is not None:
        padding.clear(loader, batches, plan, outs)
    if plan is not None and plan.edge_index_types:
        for batch, out in zip(batches, outs, strict=True):
            wrap_edges(loader, plan, batch, out)
    times.append(time.perf_counter())
    return batches, list(outs), nbytes


def _plan(loader: LoaderView) -> DataPlan:
    """What to do with the attributes of the data as it is now."""
    if loader._gpu is not None:
        placed: DataPlan = loader._gpu.columns(DataColumns(loader))
        return placed
    known = loader._plan_of_data
    if known is None or not known.fits(loader.data):
        known = loader._plan_of_data = DataPlan(loader.data, None, lambda name, value: value)
    return known
