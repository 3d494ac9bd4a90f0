"""Checks at the construction of loaders."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from manyhop.arguments import integer
from manyhop.errors import FeatureError, InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.trainers import SeedPositions
from manyhop_pyg.loaders.inputs import number_of_nodes
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.requests import TypedNodeInput, seeds_of
from manyhop_pyg.samplers.seeds import TypedEdgeInput
from manyhop_pyg.samplers.spec import GivenNegatives, TypedNegatives, negatives_of
from manyhop_pyg.typing import Batch, PyGData, StoreSize


def check_torch_arguments(kwargs: dict[str, object]) -> None:
    """Remove arguments that Lightning passes back, and raise InputError for arguments that would be ignored."""
    dataset = kwargs.pop("dataset", None)
    if not isinstance(dataset, SeedPositions | None):
        raise InputError(
            f"Expected no dataset, got {type(dataset).__name__}: the inputs are the dataset (input_nodes or "
            "edge_label_index)."
        )
    collate_fn = kwargs.pop("collate_fn", None)
    if collate_fn is not None and getattr(collate_fn, "__name__", None) != "collate_fn":
        raise InputError("Expected no collate_fn: a batch is sampled, not collated. Pass `transform` to change it.")
    if kwargs.get("batch_size", 1) is None:
        raise InputError(
            "Expected batch_size to be an integer, got None: seeds are sampled in batches. batch_size=1 samples one "
            "by one, a batch_sampler decides for itself."
        )
    if "batch_size" in kwargs:  # torch rejects integers of numpy
        kwargs["batch_size"] = integer("batch_size", kwargs["batch_size"], 1)


def check_features(data: PyGData, custom_cls: type[Batch] | None) -> None:
    """Raise FeatureError if an attribute with the name of a node or edge attribute has a wrong length.

    PyG identifies node and edge attributes by their length. Batches contain all others unchanged.
    """
    if not isinstance(data, Data | HeteroData):
        return
    if custom_cls is not None:
        raise InputError(
            "custom_cls is for batches of (FeatureStore, GraphStore); this loader's batches are of the "
            "class of its data. Leave it out."
        )
    whole = [(None, data.stores[0])]
    for node_type, store in whole if isinstance(data, Data) else data.node_items():
        num_nodes = number_of_nodes(data, node_type)
        for name, value in store.items():
            if name in ("x", "y") or name.endswith("_mask"):
                lengths = (num_nodes, store.num_edges) if isinstance(data, Data) and name != "x" else (num_nodes,)
                _expect(name, node_type, value, lengths, "node")
    for edge_type, store in whole if isinstance(data, Data) else data.edge_items():
        for name in ("edge_attr", "edge_weight"):
            if name in store:
                edge_index = store.get("edge_index")  # whose number of edges PyG may not count
                num_edges = edge_index.size(1) if isinstance(edge_index, Tensor) else store.num_edges
                _expect(name, edge_type, store[name], (int(num_edges),), "edge")


def check_sampler(name: str, sampler: BaseSampler, method: str) -> BaseSampler:
    """Raise InputError unless ``sampler`` has the method."""
    if not callable(getattr(sampler, method, None)):
        raise InputError(f"Expected {name} with a method {method}, got {type(sampler).__name__}.")
    return sampler


def check_seeds(sampler: BaseSampler, inputs: NodeSamplerInput) -> None:
    """Raise InputError if types or times of seeds do not fit. Missing times may come with calls of the sampler."""
    if isinstance(inputs, TypedNodeInput) and not isinstance(sampler, NeighborSampler | HGTSampler):
        raise InputError(
            "Seeds of multiple types need manyhop_pyg.NeighborSampler or HGTSampler, got a "
            f"{type(sampler).__name__}. Pass input_nodes=('type', ids)."
        )
    if isinstance(sampler, NeighborSampler):
        for name in seeds_of(inputs)[0]:
            sampler.topology.node_type(name)
        _check_times("input_time", sampler, inputs.time)


def _check_times(name: str, sampler: NeighborSampler, time: Tensor | None) -> None:
    if time is not None and not sampler.is_temporal:
        raise InputError(f"Got {name}, but the sampler has no times: pass time_attr to it.")
    if time is not None:
        sampler.requests.time_limits(time)


def check_link_sampler(
    sampler: BaseSampler, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, *, exclude_true: bool
) -> None:
    """Raise InputError where seed edges, times and negatives do not fit the sampler."""
    if not isinstance(sampler, NeighborSampler):
        needs = {
            "seed edges of multiple types": isinstance(inputs, TypedEdgeInput),
            "exclude_true_negatives=True": exclude_true,
            "GivenNegatives": isinstance(neg_sampling, GivenNegatives),
        }
        for what in (what for what, used in needs.items() if used):
            raise InputError(f"Expected a manyhop_pyg.NeighborSampler for {what}, got a {type(sampler).__name__}.")
        return
    if isinstance(inputs, TypedEdgeInput):
        types = list(inputs.input_type)
        if isinstance(neg_sampling, TypedNegatives):
            if set(neg_sampling.of_types) != set(types):
                raise InputError(
                    f"Expected neg_sampling by type for the types of the seed edges, {types}, got it for "
                    f"{list(neg_sampling.of_types)}."
                )
        elif isinstance(neg_sampling, GivenNegatives) and not neg_sampling.in_batch:
            raise InputError(
                "Expected neg_sampling by type for negatives from a tensor or a function of multiple types, got one "
                f"for {types}. Pass a dict of these."
            )
        elif neg_sampling is not None and (neg_sampling.src_weight is not None or neg_sampling.dst_weight is not None):
            raise InputError(
                f"Expected neg_sampling by type for weights of multiple types, got one for {types}. Pass a dict."
            )
        for edge_type, part in inputs.parts.items():
            of_type = negatives_of(neg_sampling, edge_type)
            check_link_sampler(sampler, part, of_type, exclude_true=exclude_true)
        return
    if isinstance(neg_sampling, TypedNegatives):
        raise InputError("Expected neg_sampling without types for seed edges of one type, got a dict. Pass its value.")
    sampler.seed_edges.check(inputs.input_type, neg_sampling, exclude_true=exclude_true)
    _check_times("edge_label_time", sampler, inputs.time)
    if isinstance(neg_sampling, GivenNegatives) and neg_sampling.in_batch and inputs.time is not None:
        raise InputError(
            "Negatives in the batch would be seen at the time of another seed edge. Expected GivenNegatives with a "
            "tensor or a function in a temporal loader, got 'in_batch'."
        )


def store_size(data: PyGData, sampler: BaseSampler) -> StoreSize:
    """Return the number of nodes and edges of a homogeneous store, which identify its attributes."""
    if isinstance(data, tuple) and isinstance(sampler, NeighborSampler) and not sampler.is_hetero:
        graph = sampler.topology.graph
        return graph.num_nodes[HOMOGENEOUS_NODE], graph.num_edges(HOMOGENEOUS_EDGE)
    return None, None


def _expect(
    name: str, key: NodeType | EdgeType | None, value: object, lengths: tuple[int | None, ...], kind: str
) -> None:
    wanted = lengths[0]
    if not isinstance(value, Tensor | np.ndarray) or value.ndim == 0 or wanted is None or value.shape[0] in lengths:
        return
    got = int(value.shape[0])
    if name == "x" or abs(got - wanted) == 1:
        where = f" of {key!r}" if key is not None else ""
        raise FeatureError(
            f"Expected '{name}'{where} to have one row per {kind} ({wanted}), got {got} rows. "
            "Correct its length, or rename it if it is something else."
        )
