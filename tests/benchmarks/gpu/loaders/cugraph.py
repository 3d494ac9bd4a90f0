"""cuGraph-PyG's loader for ``benchmarks gpu``, driven as its examples do, with the faster of its settings."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch_geometric.data import Data

from benchmarks.common.machine import import_quietly
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_labels
from benchmarks.gpu.job import Job
from benchmarks.gpu.loaders.data import MakeLoader
from benchmarks.gpu.loaders.step import CLASSES
from benchmarks.gpu.peers import start_cugraph
from benchmarks.gpu.timing import Ranks


def cugraph_pyg(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    """Stores of which each rank puts its part: features in device memory, over all GPUs where there are several.

    Seeds per call of the sampler: cuGraph-PyG's own choice, which is the whole epoch unless that is very long.
    """
    if placement != ("sharded" if ranks.size > 1 else "replica"):
        raise NotImplementedError("cuGraph-PyG spreads features over all GPUs, always")
    start_cugraph(ranks)
    import_quietly("pylibwholegraph.torch.initialize").init(ranks.rank, ranks.size, ranks.rank, ranks.size, "warn")
    stores = import_quietly("cugraph_pyg.data")
    loader_class = import_quietly("cugraph_pyg.loader").NeighborLoader
    small = graph.num_edges * 16 < ranks.size << 34  # edges wait in GPU memory where there is room: a quicker start
    edges = stores.GraphStore(location="cuda" if small else "cpu")
    features = stores.FeatureStore(location="cuda")
    size = (graph.num_nodes, graph.num_nodes)
    share = [graph.num_edges * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
    edges[("node", "to", "node"), "coo", False, size] = graph.edge_index(*share)
    graph.move_to_host()
    edges = edges.finalize()
    nodes = [graph.num_nodes * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
    dtype = torch.float16 if job.half else torch.float32
    features["node", "x", None] = draw_features(nodes[1] - nodes[0], job.num_features, dtype, ranks.device, nodes[0])
    features["node", "y", None] = draw_labels(graph.num_nodes, CLASSES, ranks.device)[nodes[0] : nodes[1]]
    torch.cuda.empty_cache()

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Data]:
        loader: Iterable[Data] = loader_class(
            (features, edges),
            num_neighbors=list(fanout),
            input_nodes=seeds[ranks.rank :: ranks.size].flatten(),
            batch_size=job.batch_size,
            shuffle=True,
            drop_last=True,
        )
        return loader

    return make, 1 << 30
