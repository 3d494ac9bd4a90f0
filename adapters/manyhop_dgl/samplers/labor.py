"""DGL's LaborSampler over the engine: nodes that ask agree on neighbours, so that batches have fewer nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dgl.dataloading import BlockSampler
from dgl.dataloading import LaborSampler as LaborSamplerOfDGL

from manyhop.arguments import flag, integer
from manyhop.errors import InputError
from manyhop.sampling import BatchKey, LaborSpec
from manyhop_dgl.graph.topology import EdgeDir, Topology, check_choice_of_edges
from manyhop_dgl.samplers.arguments import Keys, check_name, freeze_fanouts, read_fanouts
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.plan import Arguments
from manyhop_dgl.typing import Fanouts, Names


@dataclass(frozen=True)
class LaborArguments(Arguments):
    """How neighbours are sampled by LABOR, in the user's terms."""

    importance_sampling: int = 0
    layer_dependency: bool = False
    batch_dependency: int = 1

    def spec(self, topology: Topology) -> LaborSpec:
        """Return how the engine samples them."""
        return LaborSpec(
            fanouts=read_fanouts(self.fanouts, topology),
            method="poisson",
            importance=self.importance_sampling,
            layer_dependency=self.layer_dependency,
            batch_dependency=self.batch_dependency,
            weighted=topology.weighted,
        )

    def check(self, device: torch.device) -> None:
        """Raise InputError if a device does not support the sampling."""
        if device.type != "cpu" and self.importance_sampling != 0:
            raise InputError(
                f"Expected importance_sampling=0 for sampling on {device}, got {self.importance_sampling}, which the "
                "CPU can do: leave device out, or importance_sampling."
            )


class LaborSampler(EngineSampler):
    """DGL's ``LaborSampler``: layer-neighbour sampling (Balin and Catalyurek, arXiv 2210.13339).

    All nodes that ask share one random number per neighbour, so they agree on neighbours if possible: a batch has
    fewer nodes than with :class:`NeighborSampler`, at the same variance. Fanouts are expected numbers of neighbours.

    With ``prob`` or ``importance_sampling``, blocks have ``edata["edge_weights"]``, by which messages must be
    multiplied before they are averaged; they are 1 on average, also in graphs with multiple edge types.

    Args:
        fanouts: as for :class:`NeighborSampler`.
        edge_dir: as for :class:`NeighborSampler`.
        prob: name of edge data: neighbours are picked in proportion to it.
        importance_sampling: rounds in which probabilities are made to favour neighbours that many nodes share (0: they
            are uniform, or given by ``prob``); -1: until that does not help any more. Sampling on a GPU takes 0 only.
        layer_dependency: all layers have the same random numbers: fewer nodes, at a slightly higher variance.
        batch_dependency: over how many batches the random numbers change, so that batches in a row share nodes; 1: new
            ones in each batch; 0: always the same.
        prefetch_node_feats: as for :class:`NeighborSampler`, like the following three.
        prefetch_labels: names of node data.
        prefetch_edge_feats: names of edge data.
        output_device: device of the blocks.
        seed: as for :class:`NeighborSampler`; where calls depend on each other (``batch_dependency`` other than 1), a
            seed for all of them is drawn by the first one.

    Raises:
        InputError: arguments that do not make sense.
    """

    def __init__(
        self,
        fanouts: Fanouts,
        edge_dir: EdgeDir = "in",
        prob: str | None = None,
        importance_sampling: int = 0,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        prefetch_node_feats: Names = None,
        prefetch_labels: Names = None,
        prefetch_edge_feats: Names = None,
        output_device: torch.device | str | None = None,
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
        check_choice_of_edges(edge_dir, prob, None)
        self.fanouts = fanouts
        self.edge_dir: EdgeDir = edge_dir
        self.prob = prob
        self.importance_sampling = importance_sampling
        self.layer_dependency = layer_dependency
        self.batch_dependency = batch_dependency
        self.arguments()

    def arguments(self) -> LaborArguments:
        """Return how neighbours are sampled, by the current attributes."""
        return LaborArguments(
            freeze_fanouts(self.fanouts),
            self.edge_dir,
            self.prob,
            importance_sampling=integer("importance_sampling", self.importance_sampling, -1),
            layer_dependency=flag("layer_dependency", self.layer_dependency),
            batch_dependency=integer("batch_dependency", self.batch_dependency, 0),
        )

    def next_key(self) -> BatchKey:
        """Return the key of one call."""
        return self._keys.next(counts=self.batch_dependency != 1)

    def of_dgl(self) -> BlockSampler:
        """Return DGL's sampler of the same arguments."""
        return LaborSamplerOfDGL(
            self.fanouts,
            self.edge_dir,
            self.prob,
            self.importance_sampling,
            self.layer_dependency,
            self.batch_dependency,
            output_device=self.output_device,
        )

    def set_seed(self, random_seed: int | None = None) -> None:
        """Begin again with another seed: samplers of the same seed have the same random numbers.

        Args:
            random_seed: ``None``: drawn.
        """
        self._keys = Keys(random_seed)
