"""What shapes the batches of a loader of PyG's kind, as plain values that ranks can compare."""

from __future__ import annotations

from typing import Any

from manyhop.loading import plain
from manyhop.sampling import CONTRACT_VERSION

# Arguments of the loaders, which keep them under the same names.
_ARGUMENTS = (
    "batch_size",
    "shuffle",
    "drop_last",
    "uneven",
    "pad",
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
)

# Fields of PyG's sampler inputs, and the arguments that they come from.
_INPUTS = {
    "input_type": "type of the seeds",
    "node": "input_nodes",
    "row": "edge_label_index[0]",
    "col": "edge_label_index[1]",
    "label": "edge_label",
    "time": "time of the seeds",
    "input_id": "input_id",
}


def facts_of(loader: Any, seed: int | None) -> dict[str, Any]:
    """What has to be the same on all ranks, in the order in which differences are told. JSON can hold it."""
    facts: dict[str, Any] = {"class": type(loader).__name__, "version of the sampling contract": CONTRACT_VERSION}
    facts["seed"] = seed
    own = vars(loader) | {"shuffle": loader._shuffle}
    facts |= {name: plain(own[name]) for name in _ARGUMENTS if name in own}
    sampler = own.get("node_sampler", own.get("link_sampler"))
    facts["sampler"] = type(sampler).__name__
    facts["specification of the sampler"] = plain(getattr(sampler, "_spec", None))
    topology = getattr(sampler, "topology", None)
    if topology is not None:
        facts["number of nodes"] = plain(topology.graph.num_nodes)
        facts["number of edges"] = plain({kind: csc.num_edges for kind, csc in topology.graph.csc.items()})
    inputs = vars(loader.input_data)
    facts |= {name: plain(inputs[field]) for field, name in _INPUTS.items() if field in inputs}
    return facts
