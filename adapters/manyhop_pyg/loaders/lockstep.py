"""Loaders over stores whose tensors are spread over nodes: all ranks exchange rows, batch by batch."""

from __future__ import annotations

import torch

from manyhop.errors import InputError
from manyhop.features import VISITS_PER_ROW, Exchange, Visits, keep_on_nodes, rows_wanted
from manyhop.loading import BatchContext, counting_in
from manyhop.loading.pipeline import BatchPlan, Lockstep, Stats, Turn, exchanging
from manyhop.sampling import BatchKey
from manyhop_pyg.batch.join import join
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.view import LoaderView
from manyhop_pyg.typing import PyGData

_MOST_BATCHES = 64  # sampled to fill a cache


def sharded_store(data: PyGData) -> FeatureStore | None:
    """The feature store of ``data``, if some of its tensors are spread over several nodes."""
    store = data[0] if isinstance(data, tuple) else None
    return store if isinstance(store, FeatureStore) and store.sharded_rows else None


def check_sharded(data: PyGData, *, distributed: bool) -> None:
    """Raise InputError where ranks would have to exchange rows, but go their own ways."""
    store = data[0] if isinstance(data, tuple) else None
    exchanges = isinstance(store, FeatureStore) and any(not rows.is_whole for rows in store.distributed_rows)
    if not distributed and exchanges:
        raise InputError(
            "Expected distributed=True, as tensors of the feature store are distributed over the GPUs of all ranks, "
            "which exchange rows for every batch. Pass distributed=True on all ranks, or keep the rows where each rank "
            "reads alone: FeatureStore(placement='sharded', device='cuda')."
        )
    if not distributed and sharded_store(data) is not None:
        raise InputError(
            "Expected distributed=True, as tensors of the feature store are spread over several nodes, and all ranks "
            "have to take part in every batch to exchange rows. Pass distributed=True on all ranks, or keep all rows "
            "on every node: FeatureStore(placement='shared'), or manyhop_pyg.open(folder, placement='mapped')."
        )


def make_lockstep(
    loader: LoaderView, store: FeatureStore, plan: BatchPlan, stats: Stats, title: str, timeout: float
) -> Lockstep:
    """Return the exchanges of a loader over a store that is spread over nodes. All ranks call it.

    The first loader over a store fills its cache.
    """
    exchange = Exchange(title, timeout=timeout)
    if store.cache_to_fill():
        sources = store.sharded_rows
        visits = Visits()
        _sample_first(loader, plan, visits, VISITS_PER_ROW * rows_wanted(sources, store.cache))
        keep_on_nodes(visits.hottest(store.cache), exchange, timeout=timeout)
    return Lockstep(exchange, counting_in(stats))


def _sample_first(loader: LoaderView, plan: BatchPlan, visits: Visits, enough: int) -> None:
    """Note the rows of the first batches of epoch 0, of all ranks, in their order. Seed 0, whatever the loader's."""
    for batch in range(min(len(plan), _MOST_BATCHES)):
        if visits.rows >= enough:
            return
        index = torch.from_numpy(plan.indices(0, batch))
        with BatchContext(BatchKey(0, 0, batch), Turn(0, batch)), exchanging(visits):
            out = loader.sample_inputs(loader.input_data[index])
            if loader.transform_sampler_output is not None:
                out = loader.transform_sampler_output(out)
            join(loader.joining(), [out], [])
