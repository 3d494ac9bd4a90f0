"""How neighbours are sampled by LABOR; without DGL."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from manyhop.errors import InputError
from manyhop.sampling import LaborSpec
from manyhop_dgl.graph.topology import Topology
from manyhop_dgl.samplers.arguments import read_fanouts
from manyhop_dgl.samplers.plan import Arguments


@dataclass(frozen=True)
class LaborArguments(Arguments):
    """How neighbours are sampled by LABOR, in the user's terms."""

    importance_sampling: int = 0
    layer_dependency: bool = False
    batch_dependency: int = 1

    def spec(self, topology: Topology) -> LaborSpec:
        """How the engine samples them."""
        return LaborSpec(
            fanouts=read_fanouts(self.fanouts, topology),
            method="poisson",
            importance=self.importance_sampling,
            layer_dependency=self.layer_dependency,
            batch_dependency=self.batch_dependency,
            weighted=topology.weighted,
        )

    def check(self, device: torch.device) -> None:
        """Raise InputError where a device cannot sample so."""
        if device.type != "cpu" and self.importance_sampling != 0:
            raise InputError(
                f"Expected importance_sampling=0 for sampling on {device}, got {self.importance_sampling}, which the "
                "CPU can do: leave device out, or importance_sampling."
            )
