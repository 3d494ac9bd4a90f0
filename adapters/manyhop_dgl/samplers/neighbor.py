"""DGL's samplers of neighbours over the engine; any of DGL's loaders can use them, also in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from dgl.dataloading import BlockSampler
from dgl.dataloading import NeighborSampler as NeighborSamplerOfDGL
from dgl.distributed import DistGraph
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.arguments import flag, integer
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import batch_key
from manyhop.sampling import BatchKey
from manyhop_dgl.graph.topology import EdgeDir, check_choice_of_edges
from manyhop_dgl.samplers.arguments import (
    Keys,
    by_type,
    check_name,
    check_names,
    freeze_fanouts,
)
from manyhop_dgl.samplers.blocks import lazy_frames, make_blocks, move
from manyhop_dgl.samplers.features import with_rows
from manyhop_dgl.samplers.plan import CPU, Arguments, PlanOwner, as_device, parse_device
from manyhop_dgl.samplers.tensors import BlockTensors, apply_nested
from manyhop_dgl.typing import Fanouts, GraphLike, Names, Nodes


class EngineSampler(BlockSampler):  # type: ignore[misc]  # DGL is untyped
    """The base of this package's samplers: from seeds to blocks. Safe to call from multiple threads.

    ``arguments()`` of a subclass defines how neighbours are sampled.
    """

    def __init__(
        self,
        *,
        prefetch_node_feats: Names,
        prefetch_labels: Names,
        prefetch_edge_feats: Names,
        output_device: torch.device | str | None,
        seed: int | None,
    ) -> None:
        parse_device("output_device", output_device)
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device)
        for name in ("prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats"):
            check_names(getattr(self, name), name)
        self._keys = Keys(seed)
        self.plan_owner = PlanOwner()

    def arguments(self) -> Arguments:
        """Return how neighbours are sampled, by the current attributes."""
        raise NotImplementedError

    def next_key(self) -> BatchKey:
        """Return the key of one call."""
        return self._keys.next()

    def of_dgl(self) -> BlockSampler:
        """Return DGL's sampler of the same arguments."""
        raise NotImplementedError

    def sample_blocks(
        self, g: GraphLike, seed_nodes: object, exclude_eids: object = None
    ) -> tuple[Nodes, Nodes, list[DGLBlock]]:
        """Sample around seed nodes.

        Args:
            g: the graph, on the CPU. DGL's own sampler samples from a ``DistGraph``.
            seed_nodes: ``[num_seeds]`` ids (tensor, array or list), or a dict, node type -> ids. Each copy of a
                duplicate is a row of the output, with its own neighbours.
            exclude_eids: edge ids, or a dict, edge type -> edge ids: they are removed from the picks.

        Returns:
            Input nodes (a dict, node type -> ids, if the graph has multiple node types), the seeds, and the blocks,
            the input layer first.

        Raises:
            InputError: seeds of unknown types, out of range, not on the CPU; such edges to exclude.
        """
        if isinstance(g, DistGraph):  # whose servers DGL's sampler asks
            return self.of_dgl().sample_blocks(g, seed_nodes, exclude_eids)  # type: ignore[no-any-return]
        how, owner = self.arguments(), self.plan_owner
        output_nodes, request, plan = how.request(g, seed_nodes, exclude_eids, self.next_key, CPU, owner)
        tensors = plan.sample(request)
        blocks = make_blocks(tensors, lazy_frames(g))
        input_nodes = tensors.input_nodes if blocks else output_nodes  # without layers, the unchanged seeds, as in DGL
        if self.output_device is not None and (there := parse_device("output_device", self.output_device)) != CPU:
            blocks = move(blocks, there)  # first, as its error names a missing GPU
            return *apply_nested((input_nodes, output_nodes), partial(Tensor.to, device=there)), blocks
        return input_nodes, output_nodes, blocks

    def check_prefetching(self, node_types: Sequence[NodeType], edge_types: Sequence[EdgeType]) -> None:
        """Raise InputError for data of types that there are not, or without a type if there are multiple."""
        for name in ("prefetch_node_feats", "prefetch_labels"):
            by_type(getattr(self, name) or {}, node_types, "node", name, "list of names")
        by_type(self.prefetch_edge_feats or {}, edge_types, "edge", "prefetch_edge_feats", "list of names")

    def assign_lazy_features(self, result: Any) -> object:
        """Name in the blocks the data that the loader shall gather.

        Raises:
            InputError: data of types that the graph does not have, or without a type if it has multiple; data where
                there are no blocks.
        """
        if not result[2]:
            if self.prefetch_node_feats or self.prefetch_labels or self.prefetch_edge_feats:
                raise InputError("Expected fanouts of a layer to prefetch data for its blocks, got none. Add a layer.")
            return result
        self.check_prefetching(result[2][0].srctypes, result[2][0].canonical_etypes)
        return super().assign_lazy_features(result)

    def sample_tensors(
        self,
        g: GraphLike,
        seed_nodes: object,
        exclude_eids: object = None,
        *,
        key: tuple[int, int, int] | None = None,
        device: torch.device | str | None = None,
        node_features: Names = None,
        edge_features: Names = None,
    ) -> BlockTensors:
        """Sample into tensors, without DGL's objects: see :func:`manyhop_dgl.sample_tensors`."""
        check_names(node_features, "node_features")
        check_names(edge_features, "edge_features")
        own, there = self.next_key if key is None else partial(batch_key, key), as_device(device)
        _, request, plan = self.arguments().request(g, seed_nodes, exclude_eids, own, there, self.plan_owner)
        return with_rows(plan.sample(request), g, node_features, edge_features)

    def __repr__(self) -> str:
        options = vars(self.arguments())
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


class NeighborSampler(EngineSampler):
    """DGL's ``NeighborSampler``: each node gathers messages from a number of neighbours, per layer and edge type.

    A batch is a function of its key: in manyhop's loaders seed, epoch and number of the batch; elsewhere the seed and
    the number of the call, or a key drawn for the call. The attributes may be set later.

    Args:
        fanouts: per layer, the input layer first: neighbours per node (-1: all, 0: none), or a dict with all edge
            types, edge type (its name, or the triple) -> neighbours.
        edge_dir: ``"in"``: neighbours are sources of a node's in-edges. ``"out"``: destinations of its out-edges;
            blocks are then those of ``dgl.reverse(g)``, with the ids of the edges in ``g``.
        prob: name of edge data: neighbours are picked in proportion to it. Edge types without it: uniformly.
        mask: name of boolean edge data: edges that may be sampled. Excludes ``prob``.
        replace: sample with replacement.
        prefetch_node_feats: names of node data for the sources of the first block, by node type where there are
            multiple; the loader gathers them.
        prefetch_labels: names of node data for the destinations of the last block.
        prefetch_edge_feats: names of edge data for the edges of all blocks.
        output_device: device of the blocks; ``None``: that of the graph.
        fused: DGL selects one of two implementations by it; without effect here.
        seed: of the random numbers; ``None``: each call draws a key, which ``dgl.seed`` fixes, and
            ``torch.manual_seed`` where that was never called.

    Raises:
        InputError: arguments that do not make sense.
    """

    def __init__(
        self,
        fanouts: Fanouts,
        edge_dir: EdgeDir = "in",
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        prefetch_node_feats: Names = None,
        prefetch_labels: Names = None,
        prefetch_edge_feats: Names = None,
        output_device: torch.device | str | None = None,
        fused: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            prefetch_node_feats=prefetch_node_feats,
            prefetch_labels=prefetch_labels,
            prefetch_edge_feats=prefetch_edge_feats,
            output_device=output_device,
            seed=seed,
        )
        check_name(prob, "prob")
        check_name(mask, "mask")
        check_choice_of_edges(edge_dir, prob, mask)
        freeze_fanouts(fanouts)
        self.fanouts = fanouts
        self.edge_dir: EdgeDir = edge_dir
        self.prob = prob
        self.mask = mask
        self.replace = flag("replace", replace)
        self.fused = flag("fused", fused)

    def arguments(self) -> Arguments:
        """Return how neighbours are sampled, by the current attributes."""
        replace = self.replace if type(self.replace) is bool else flag("replace", self.replace)
        return Arguments(freeze_fanouts(self.fanouts), self.edge_dir, self.prob, self.mask, replace)

    def of_dgl(self) -> BlockSampler:
        """Return DGL's sampler of the same arguments."""
        return NeighborSamplerOfDGL(
            self.fanouts, self.edge_dir, self.prob, self.mask, self.replace, output_device=self.output_device
        )


MultiLayerNeighborSampler = NeighborSampler
"""DGL's other name of :class:`NeighborSampler`."""


class MultiLayerFullNeighborSampler(NeighborSampler):
    """All neighbours, on every layer.

    Args:
        num_layers: number of layers.
        **kwargs: as for :class:`NeighborSampler`.

    Raises:
        InputError: arguments that do not make sense.
    """

    def __init__(self, num_layers: int, **kwargs: Any) -> None:
        super().__init__([-1] * integer("num_layers", num_layers), **kwargs)
