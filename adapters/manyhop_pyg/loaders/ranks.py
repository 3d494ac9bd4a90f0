"""Loaders on multiple ranks: facts that ranks compare, and rows that they exchange per batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NodeSamplerInput
from torch_geometric.typing import SparseTensor, TensorFrame

from manyhop.errors import InputError
from manyhop.features import VISITS_PER_ROW, Exchange, Visits, keep_on_nodes, rows_wanted
from manyhop.loading import BatchContext, current_batch, current_key, graph_facts, plain, rows_fact
from manyhop.loading.keys import first_batches
from manyhop.loading.pipeline import BatchPlan
from manyhop_pyg.batch.assemble import Joining
from manyhop_pyg.batch.join import join
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.adapter import Seeds
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.subgraphs import NodeSetSampler
from manyhop_pyg.typing import PyGData

# Arguments of the loaders, which keep them under the same names.
_OF_LINKS = ("neg_sampling", "exclude_true_negatives", "exclude_seed_edges", "reverse_eids", "reverse_etypes")
_ARGUMENTS = (
    "uneven",
    "pad",
    "engine",
    "num_parts",
    "num_neighbors",
    "num_samples",
    "max_neighbors",
    "replace",
    "subgraph_type",
    "disjoint",
    "temporal_strategy",
    "time_attr",
    "weight_attr",
    "time_window",
    "directed",
    *_OF_LINKS,
)

# Fields of PyG's sampler inputs, and the arguments that they come from.
_INPUTS = {
    "input_type": "type of the seeds",
    "sizes": "number of seeds of each type",
    "parts": "seed edges of each type",
    "node": "input_nodes",
    "row": "edge_label_index[0]",
    "col": "edge_label_index[1]",
    "label": "edge_label",
    "time": "time of the seeds",
    "input_id": "input_id",
}


class LoaderFacts(NamedTuple):
    """The ``Facts`` of a loader."""

    arguments: Mapping[str, Any]
    """Attributes of the loader, which has its arguments under the same names."""
    sampler: BaseSampler

    def of_ranks(self) -> dict[str, object]:
        """Return facts that must be equal on all ranks, in the order of their reports."""
        own = self.arguments
        facts: dict[str, object] = {name: plain(own[name]) for name in _ARGUMENTS if name in own}
        facts |= plain(self.of_state())
        topology = topology_of(self.sampler)
        facts["edge ids"] = plain({} if topology is None else topology.graph.edge_ids())
        return facts | _features(own["data"])

    def of_state(self) -> dict[str, object]:
        """Return facts that samples depend on, except seeds of random numbers and the size and order of batches."""
        own, sampler = self.arguments, self.sampler
        facts = {
            "kind of seeds": "nodes" if isinstance(own["input_data"], NodeSamplerInput) else "edges",
            "sampler": type(sampler).__name__,
            "specification of the sampler": sampler.spec if isinstance(sampler, NeighborSampler | HGTSampler) else None,
            "time_window": getattr(sampler, "time_window", None),
            "seed_parts": own["seed_parts"],
        }
        facts |= {name: value for name, value in own.items() if name in _OF_LINKS}
        if isinstance(sampler, NodeSetSampler):
            facts |= sampler.facts()
        if (topology := topology_of(sampler)) is not None:
            facts |= graph_facts(topology.graph)
        inputs = vars(own["input_data"])
        return facts | {name: inputs[field] for field, name in _INPUTS.items() if field in inputs}


def topology_of(sampler: BaseSampler) -> Topology | None:
    """Return the topology of one of manyhop's samplers."""
    topology = getattr(sampler, "topology", None)
    return topology if isinstance(topology, Topology) else None


def _features(data: PyGData) -> dict[str, object]:
    """Return the attributes that batches contain, of manyhop's stores or of data."""
    if isinstance(data, Data | HeteroData):
        one = isinstance(data, Data)
        stores = [(None, data.stores[0])] if one else [*data.node_items(), *data.edge_items()]
        found = {
            f"'{key}'" if kind is None else f"'{key}' of {kind}": _parts(value)
            for kind, store in stores
            for key, value in store.items()
            if key != "edge_index" and (store.is_node_attr(key) or store.is_edge_attr(key))
        }
    else:
        found = dict(data[0].named_tensors()) if isinstance(data[0], FeatureStore) else {}
    return {f"data {name}": rows_fact(value) for name, value in found.items()}


def _parts(value: object) -> object:
    """Return the tensors of a value that has more than one."""
    if isinstance(value, SparseTensor):
        return value.csr()
    return value.feat_dict if isinstance(value, TensorFrame) else value


def sharded_store(data: PyGData) -> FeatureStore | None:
    """Return the feature store of ``data`` if some of its tensors are sharded over machines."""
    store = data[0] if isinstance(data, tuple) else None
    return store if isinstance(store, FeatureStore) and store.sharded_rows else None


def check_sharded(data: PyGData, *, distributed: bool) -> None:
    """Raise InputError if ranks must exchange rows, but do not share batches."""
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


def make_exchange(
    joining: Callable[[], Joining], seeds: Seeds, store: FeatureStore, plan: BatchPlan, title: str, timeout: float
) -> Exchange:
    """Return the exchange of a loader over a store that is spread over nodes. All ranks call it.

    The first loader over a store fills its cache.
    """
    exchange = Exchange(title, timeout=timeout)
    if seeds.has_times and store.cache_to_fill():
        sources = store.sharded_rows
        visits = Visits()
        enough = VISITS_PER_ROW * rows_wanted(sources, store.cache)
        for positions in first_batches(plan, received=True):
            if visits.rows >= enough:
                break
            with BatchContext(current_key(), current_batch(), exchange=visits):
                join(joining(), [seeds.sample(positions)], [])
        keep_on_nodes(visits.hottest(store.cache), exchange, timeout=timeout)
    return exchange
