"""The loader of the Heterogeneous Graph Transformer's samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import NodeType
from manyhop.loading.padding import Pad
from manyhop.loading.pipeline import Uneven
from manyhop.memory.places import Place
from manyhop_pyg.loaders.node import NodeLoader
from manyhop_pyg.samplers.hgt import NO_TIMES, HeteroInput, HGTSampler
from manyhop_pyg.typing import Transform


class HGTLoader(NodeLoader, torch_geometric.loader.HGTLoader):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``HGTLoader``, without torch-sparse: batches by :class:`HGTSampler`; :class:`NodeLoader` has the rest.

    Args:
        max_neighbors: how many neighbours of a node count, per edge type; see :class:`HGTSampler`.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    def __init__(
        self,
        data: HeteroInput,
        num_samples: list[int] | dict[NodeType, list[int]],
        input_nodes: NodeType | tuple[NodeType, Tensor | None] | Mapping[NodeType, Tensor | None],
        is_sorted: bool = False,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        *,
        max_neighbors: int | None = 50,
        seed: int | None = None,
        distributed: bool = False,
        uneven: Uneven | None = None,
        rank_timeout: float | None = None,
        seed_parts: int | None = None,
        device: torch.device | str | None = None,
        placement: Place | None = None,
        pad: Pad | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("input_time") is not None:
            raise InputError(NO_TIMES)
        self.num_samples = num_samples
        self.is_sorted = is_sorted
        self.max_neighbors = max_neighbors
        super().__init__(
            data=data,
            node_sampler=HGTSampler(data, num_samples, is_sorted=is_sorted, max_neighbors=max_neighbors),
            input_nodes=input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            distributed=distributed,
            uneven=uneven,
            rank_timeout=rank_timeout,
            seed_parts=seed_parts,
            device=device,
            placement=placement,
            pad=pad,
            **kwargs,
        )
