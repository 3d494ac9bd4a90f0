"""Join samples with the features of a loader's data, wherever both are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.errors import InputError
from manyhop.features import gather
from manyhop_pyg.batch.assemble import Rows, begin_data, begin_hetero_data
from manyhop_pyg.batch.assemble_stores import join_hetero_store, join_store
from manyhop_pyg.batch.joining import Joining
from manyhop_pyg.batch.plan import DataPlan
from manyhop_pyg.batch.upload import uploaded
from manyhop_pyg.typing import Batch, Sample


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
        outs = padding.pad(outs, joining.stats)
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
