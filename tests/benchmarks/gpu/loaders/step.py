"""The training step of ``benchmarks gpu``: GraphSAGE, the same for all loaders."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop_pyg
from benchmarks.gpu.job import Job
from benchmarks.gpu.timing import Ranks

CLASSES = 172

# One all-reduce, in which gradients lie where it reads them; nothing is searched for, nothing is sent but gradients.
_DDP: dict[str, Any] = {
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "bucket_cap_mb": 25,
    "broadcast_buffers": False,
}


class Step:
    """One step of Adam on one batch, each layer only for the nodes that the next ones need.

    With autocast where features are float16.

    Args:
        job: what is measured.
        ranks: who take part.
        num_layers: as many as the batches have hops.
        hidden: channels between layers.
        ddp: train under DDP, also where there is one rank.
        captured: replay steps, aggregate by segments, and compute only rows that seeds depend on.
    """

    def __init__(self, job: Job, ranks: Ranks, num_layers: int, hidden: int, *, ddp: bool, captured: bool) -> None:
        torch.manual_seed(0)
        model = GraphSAGE(job.num_features, hidden, num_layers, CLASSES).to(ranks.device)
        if captured:
            manyhop_pyg.accelerate(model, trim=True)
        if ddp:
            model = DistributedDataParallel(model, device_ids=[ranks.device] if ranks.on_gpu else None, **_DDP)
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=ranks.on_gpu or None)
        self._autocast = torch.autocast(ranks.device.type, torch.bfloat16, enabled=job.half)
        self._trims = captured  # by itself, and to fewer rows than PyG by the counts of a batch
        self._run = manyhop_pyg.capture(self._step) if captured else self._step

    def __call__(self, batch: Data) -> None:
        """Forward, backward, update; nothing is read back."""
        self._run(batch)

    def _step(self, batch: Data) -> None:
        size = batch.batch_size
        with self._autocast:
            per_hop = {} if self._trims else _per_hop(batch)
            out = self._model(batch.x, batch.edge_index, **per_hop)[:size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[:size].view(-1).long())
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()


def _per_hop(batch: Data) -> dict[str, list[int] | None]:
    """Nodes and edges of each hop, by which PyG's model trims; its sampler through torch-sparse reports none."""
    counts = {f"{name}_per_hop": batch.get(name) for name in ("num_sampled_nodes", "num_sampled_edges")}
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in counts.items()}
