"""The training step of ``manyhop bench gpu``: GraphSAGE, the same for all loaders."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from manyhop.bench._gpu_job import Job
from manyhop.bench._gpu_timing import Ranks

CLASSES = 172


class Step:
    """One step of Adam on one batch, each layer only for the nodes that the next ones need.

    Under DDP on several GPUs; with autocast where features are float16.
    """

    def __init__(self, job: Job, ranks: Ranks, num_layers: int) -> None:
        torch.manual_seed(0)
        model = GraphSAGE(job.num_features, job.hidden, num_layers, CLASSES).to(ranks.device)
        if ranks.size > 1:
            model = DistributedDataParallel(model, device_ids=[ranks.device] if ranks.on_gpu else None)
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=ranks.on_gpu or None)
        self._autocast = torch.autocast(ranks.device.type, torch.bfloat16, enabled=job.half)

    def __call__(self, batch: Any) -> None:
        """Forward, backward, update; nothing is read back."""
        size = batch.batch_size
        with self._autocast:
            out = self._model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=_counts(batch, "num_sampled_nodes"),
                num_sampled_edges_per_hop=_counts(batch, "num_sampled_edges"),
            )[:size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[:size].view(-1).long())
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()


def _counts(batch: Any, name: str) -> list[int] | None:
    """Nodes or edges of each hop; PyG's sampler through torch-sparse does not tell."""
    per_hop = batch.get(name)
    return per_hop.tolist() if isinstance(per_hop, torch.Tensor) else per_hop
