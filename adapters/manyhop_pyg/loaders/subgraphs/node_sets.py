"""What loaders share whose batches are the subgraphs of sets of nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from manyhop.errors import InputError
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.samplers.node_sets import NodeSetSampler
from manyhop_pyg.typing import Attributes, Batch, Sample


class NodeSetLoader(NodeLoader):
    """A loader whose seeds name sets of nodes: 0, 1, ...

    Args:
        data: without types.
        sampler: samples the subgraphs.
        num_sets: number of seeds.
        kwargs: what the user passes, for :class:`NodeLoader`.

    Raises:
        InputError: arguments that define the nodes of a batch.
    """

    def __init__(self, data: Data, sampler: NodeSetSampler, num_sets: int, kwargs: dict[str, Any]) -> None:
        for name in ("input_nodes", "input_time", "input_id", "node_sampler", "seed_parts"):
            if name in kwargs:
                raise InputError(
                    f"Expected no {name}, got one: {type(self).__name__} has nodes of its own. Leave it out."
                )
        self._num_sets = num_sets
        super().__init__(data=data, node_sampler=sampler, **kwargs)

    def _seed_input(self) -> NodeSamplerInput:
        return NodeSamplerInput(None, torch.arange(self._num_sets), None, None)

    @property
    def reads_inputs_on_host(self) -> bool:
        return True  # which finds the nodes

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        (into,) = super()._label(batch, out)
        del into["batch_size"]  # the first nodes are none to predict
        return [into]


def check_data(data: object) -> Data:
    """Return data with ``edge_index``.

    Raises:
        InputError: anything else.
    """
    if not isinstance(data, Data) or not isinstance(data.edge_index, torch.Tensor):
        raise InputError(f"Expected Data with an edge_index, got {type(data).__name__} without. Convert it.")
    return data
