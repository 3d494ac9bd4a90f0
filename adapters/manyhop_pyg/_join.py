"""Join a sample with the features of a loader's data, wherever both are."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.features import gather
from manyhop_pyg._assemble import Rows, begin_data, begin_hetero_data
from manyhop_pyg._assemble_remote import join_hetero_store, join_store
from manyhop_pyg._plan import DataPlan


def join(loader: Any, out: Any, times: list[float]) -> tuple[Any, Any, int]:
    """The batch without labels, the sample where the batch is, and the bytes of the features.

    ``times`` gets when gathering began and when it ended.
    """
    perm, gpu = loader._edge_permutation(), loader._gpu
    if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
        raise TypeError(f"'{type(loader).__name__}' found invalid type: '{type(out)}'")
    if gpu is not None:
        out, perm = gpu.take_over(out, perm)
    if loader._padding is not None:
        out = loader._padding.pad(out, loader._stats)
    homogeneous = isinstance(out, SamplerOutput)
    plan = _plan(loader) if isinstance(loader.data, Data | HeteroData) else None
    if plan is not None:
        rows = Rows(None if gpu is None else gpu.device)
        begin: Any = begin_data if homogeneous else begin_hetero_data
        batch = begin(plan, out, perm, rows, {} if gpu is None else gpu.bounds)
        times.append(time.perf_counter())
        # As many threads as torch's operators have here: all cores in the caller, one in a thread of the loader.
        if gpu is None:
            threads = loader._copy_threads or torch.get_num_threads()
            nbytes = rows.fetch(partial(gather, pool=loader._buffers, threads=threads))
        else:
            start = gpu.start_gather()
            nbytes = rows.fetch(partial(gpu.gather, threads=loader._copy_threads))
            gpu.end_gather(start)
    else:
        times.append(time.perf_counter())
        start = None if gpu is None else gpu.start_gather()
        if homogeneous:
            batch, nbytes = join_store(loader.data[0], out, perm, loader._store_size, loader.custom_cls, gpu)
        else:
            batch, nbytes = join_hetero_store(loader.data[0], loader.data[1], out, perm, loader.custom_cls, gpu)
        if gpu is not None:
            gpu.end_gather(start)
    if loader._padding is not None:
        loader._padding.clear(loader, batch, plan, out)
    times.append(time.perf_counter())
    return batch, out, nbytes


def _plan(loader: Any) -> DataPlan:
    """What to do with the attributes of the data as it is now."""
    if loader._gpu is not None:
        plan: DataPlan = loader._gpu.plan(loader.data)
        return plan
    plan = loader._plan_of_data
    if plan is None or not plan.fits(loader.data):
        plan = loader._plan_of_data = DataPlan(loader.data, None, lambda name, value: value)
    return plan
