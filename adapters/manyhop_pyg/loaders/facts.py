"""What shapes the batches of a loader of PyG's kind: what ranks compare, and what a state is recognised by."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import SparseTensor, TensorFrame

from manyhop.graph import EdgeType
from manyhop.loading import graph_facts, plain, rows_fact
from manyhop.sampling import CONTRACT_VERSION
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.view import LoaderView
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.node_sets import NodeSetSampler
from manyhop_pyg.typing import PyGData

# Arguments of the loaders, which keep them under the same names.
_ARGUMENTS = (
    "batch_size",
    "shuffle",
    "drop_last",
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
    "neg_sampling",
    "exclude_true_negatives",
    "exclude_seed_edges",
    "reverse_eids",
    "reverse_etypes",
)

_OF_LINKS = ("neg_sampling", "exclude_true_negatives", "exclude_seed_edges", "reverse_eids", "reverse_etypes")

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


class LoaderFacts:
    """The ``Facts`` of a loader."""

    def __init__(self, loader: LoaderView, *, shuffle: bool) -> None:
        self._loader, self._shuffle = loader, shuffle

    def of_ranks(self, seed: int | None) -> dict[str, object]:
        """Return what must be the same on all ranks, in the order in which differences are reported."""
        loader = self._loader
        facts: dict[str, object] = {"class": type(loader).__name__}
        facts |= {"version of the sampling contract": CONTRACT_VERSION, "seed": seed}
        own = vars(loader) | {"shuffle": self._shuffle}
        facts |= {name: plain(own[name]) for name in _ARGUMENTS if name in own} | plain(self.of_state())
        facts["edge ids"] = plain(_edge_ids(loader))
        return facts | _features(loader.data)

    def of_state(self) -> dict[str, object]:
        """Return what samples depend on beside seeds of random numbers, and the size and order of batches."""
        loader = self._loader
        sampler, _ = loader.seed_sampler()
        facts = {
            "kind of seeds": "nodes" if isinstance(loader.input_data, NodeSamplerInput) else "edges",
            "sampler": type(sampler).__name__,
            "specification of the sampler": sampler.spec if isinstance(sampler, NeighborSampler | HGTSampler) else None,
            "time_window": getattr(sampler, "time_window", None),
            "seed_parts": loader.seed_parts,
        }
        facts |= {name: value for name, value in vars(loader).items() if name in _OF_LINKS}
        if isinstance(sampler, NodeSetSampler):
            facts |= sampler.facts()
        if (topology := _topology(loader)) is not None:
            facts |= graph_facts(topology.graph)
        inputs = vars(loader.input_data)
        return facts | {name: inputs[field] for field, name in _INPUTS.items() if field in inputs}


def _edge_ids(loader: LoaderView) -> Mapping[EdgeType, Tensor | None]:
    topology = _topology(loader)
    return {} if topology is None else topology.graph.edge_ids()


def _topology(loader: LoaderView) -> Topology | None:
    topology = getattr(loader.seed_sampler()[0], "topology", None)
    return topology if isinstance(topology, Topology) else None


def _features(data: PyGData) -> dict[str, object]:
    """What batches carry of the data, each attribute by itself; of stores, if they are ours."""
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
    """The tensors of a value that has several."""
    if isinstance(value, SparseTensor):
        return value.csr()
    return value.feat_dict if isinstance(value, TensorFrame) else value
