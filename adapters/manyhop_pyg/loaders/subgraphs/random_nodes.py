"""The loader of random parts of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.loader

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.loaders.options import keeps_arguments
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import Attributes, Batch, PyGData, Sample


class RandomNodeLoader(NodeLoader, torch_geometric.loader.RandomNodeLoader):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``RandomNodeLoader``: the nodes, of all types together, in ``num_parts`` parts with the edges inside.

    With ``shuffle=True``, the parts of an epoch are random. Batches have the nodes in the order of the loader, the
    edges by destination, and the ids of both as ``n_id`` and ``e_id``. See :class:`NodeLoader` for the rest.

    Args:
        data: ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``.
        num_parts: number of batches.
        transform: called with each batch.
        **kwargs: of :class:`NodeLoader` but for ``input_nodes``, and of torch's ``DataLoader`` but for ``batch_size``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    @keeps_arguments
    def __init__(
        self, data: PyGData, num_parts: int, *, transform: Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        self.num_parts = integer("num_parts", num_parts, 1)
        sampler = NeighborSampler(data, [], subgraph_type="induced")
        num_nodes = sampler.num_nodes
        total = sum(num_nodes.values()) if isinstance(num_nodes, dict) else num_nodes
        batch_size = max(1, -(-total // self.num_parts))
        if kwargs.get("batch_size") == batch_size:
            del kwargs["batch_size"]  # Lightning hands it back
        for name in ("batch_size", "input_nodes", "node_sampler", "seed_parts"):
            if name in kwargs:
                raise InputError(f"Expected num_parts alone to define the batches, got {name}: leave it out.")
        super().__init__(
            data=data,
            node_sampler=sampler,
            input_nodes=dict.fromkeys(num_nodes) if isinstance(num_nodes, dict) else None,
            transform=transform,
            batch_size=batch_size,
            **kwargs,
        )

    def _label(self, batch: Batch, out: Sample) -> list[Attributes]:
        stores = super()._label(batch, out)
        for into in stores:
            del into["input_id"], into["batch_size"]  # the seeds are all nodes of the batch
        return stores
