"""One graph, the loaders that each adapter makes of it, and what their batches have in common."""

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

NUM_NODES, NUM_EDGES = 60, 400


def edges(seed: int = 0) -> Tensor:
    """Edges ``[2, NUM_EDGES]`` in the order of their destinations, so that ids are positions in every layout."""
    ends = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=torch.Generator().manual_seed(seed))
    return ends[:, ends[1].sort(stable=True).indices]


EDGES = edges()
X = torch.randn(NUM_NODES, 3, generator=torch.Generator().manual_seed(1))
SEEDS = torch.arange(50)


class Taken(NamedTuple):
    """A batch: its seed nodes, all nodes, ids of its edges, rows of the nodes."""

    seeds: Tensor
    n_id: Tensor
    e_id: Tensor
    x: Tensor

    def ids(self) -> list[list[int]]:
        return [self.seeds.tolist(), self.n_id.tolist(), self.e_id.tolist()]


class Harness:
    """What the tests need of an adapter."""

    name: str
    sharing: dict[str, Any]  # the options of loaders whose ranks share batches
    shares_by: str  # what an error tells the user to pass

    @classmethod
    def installed(cls) -> bool:
        return True

    source: Callable[..., Any]  # (ends=EDGES, x=X): the adapter's graph with features
    replace: Callable[[Any, Tensor], None]  # (source, x): puts other rows in the place of the features
    make: Callable[..., Any]  # (source, *, seeds, fanouts, each, **options): a loader
    take: Callable[[Any], Taken]  # (batch)
    real: Callable[[Any], Taken]  # (batch): a padded batch without its padding
    # (monkeypatch): lets loaders take the way of GPUs; the list to which numbers of batches that are begun at once go.
    on_gpu: Callable[[pytest.MonkeyPatch], list[int]]

    def loader(self, source: Any = None, **options: Any) -> Any:
        """Return a loader of seed nodes.

        Options: ``seeds``, ``fanouts``, ``each`` (called with the seeds of each batch, where functions of the user
        run), and those of all loaders.
        """
        usual = {"seeds": SEEDS, "fanouts": [3, 2], "batch_size": 8, "shuffle": True, "seed": 3, "each": None}
        options = usual | options
        return self.make(self.source() if source is None else source, **options)

    def epoch(self, loader: Any) -> list[list[list[int]]]:
        return [self.take(batch).ids() for batch in loader]


class PyG(Harness):
    name = "PyG"
    sharing, shares_by = {"distributed": True}, "distributed=True"

    def source(self, ends: Tensor = EDGES, x: Tensor = X) -> Any:
        from torch_geometric.data import Data

        return Data(edge_index=ends, x=x)

    def replace(self, source: Any, x: Tensor) -> None:
        source.x = x

    def make(self, source: Any, *, seeds: Tensor, fanouts: list[int], each: Any, **options: Any) -> Any:
        from manyhop_pyg import NeighborLoader

        def transform(batch: Any) -> Any:
            each(batch.n_id[: batch.batch_size].tolist())
            return batch

        options |= {} if each is None else {"transform": transform}
        return NeighborLoader(source, fanouts, input_nodes=seeds, **options)

    def take(self, batch: Any) -> Taken:
        return Taken(batch.n_id[: batch.batch_size], batch.n_id, batch.e_id, batch.x)

    def real(self, batch: Any) -> Taken:
        seeds, n_id, e_id, x = self.take(batch)
        return Taken(seeds[batch.seed_mask], n_id[batch.node_mask], e_id[batch.edge_mask], x[batch.node_mask])

    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        from grouped import StandIn, on_stand_in

        on_stand_in(monkeypatch)()
        return StandIn.groups


class DGL(Harness):
    name = "DGL"
    sharing, shares_by = {"use_ddp": True}, "use_ddp=True"

    @classmethod
    def installed(cls) -> bool:
        from manyhop.system.finding import installed_version

        return installed_version(("dgl",)) is not None

    def source(self, ends: Tensor = EDGES, x: Tensor = X) -> Any:
        import manyhop_dgl  # noqa: F401  # makes dgl importable
        import dgl  # isort: skip

        graph = dgl.graph(tuple(ends), num_nodes=NUM_NODES)
        graph.ndata["x"] = x
        return graph

    def replace(self, source: Any, x: Tensor) -> None:
        source.ndata["x"] = x

    def make(self, source: Any, *, seeds: Tensor, fanouts: list[int], each: Any, **options: Any) -> Any:
        from manyhop_dgl import DataLoader, NeighborSampler

        class Own(NeighborSampler):
            def sample(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
                each(seed_nodes.tolist())
                return super().sample(g, seed_nodes, exclude_eids)

        sampler = (NeighborSampler if each is None else Own)(fanouts, prefetch_node_feats=["x"], seed=1)
        return DataLoader(source, seeds, sampler, **options)

    def take(self, batch: Any) -> Taken:
        nodes, seeds, blocks = batch
        ids = torch.cat([block.edata["_ID"] for block in reversed(blocks)])
        return Taken(seeds, nodes, ids, blocks[0].srcdata["x"])

    def real(self, batch: Any) -> Taken:
        seeds, n_id, e_id, x = self.take(batch)
        nodes, mask = batch[2][0].srcdata["node_mask"], batch[2][-1].dstdata["node_mask"]
        edges = torch.cat([block.edata["edge_mask"] for block in reversed(batch[2])])
        return Taken(seeds[mask], n_id[nodes], e_id[edges], x[nodes])

    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        from group_stand_ins import dgl_on_stand_in

        switch = dgl_on_stand_in(monkeypatch)
        switch(True)
        return switch.groups


class GraphBolt(Harness):
    name, device = "GraphBolt", "cpu"
    sharing, shares_by = {"distributed": True}, "DistributedItemSampler"

    def source(self, ends: Tensor = EDGES, x: Tensor = X) -> Any:
        import manyhop_dgl.graphbolt as gb
        from manyhop_graphbolt.types import ORIGINAL_EDGE_ID

        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends[1].bincount(minlength=NUM_NODES).cumsum(0)])
        ids = {ORIGINAL_EDGE_ID: torch.arange(ends.size(1))}
        store = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(x)})
        return gb.fused_csc_sampling_graph(indptr, ends[0], edge_attributes=ids), store

    def replace(self, source: Any, x: Tensor) -> None:
        source[1].update("node", None, "x", x)

    def make(self, source: Any, *, seeds: Tensor, fanouts: list[int], each: Any, **options: Any) -> Any:
        import manyhop_dgl.graphbolt as gb

        def function(minibatch: Any) -> Any:
            each(minibatch.seeds.tolist())
            return minibatch

        (graph, store), items = source, gb.ItemSet(seeds, names="seeds")
        of_items = {k: options.pop(k) for k in ("batch_size", "shuffle", "seed", "drop_last") if k in options}
        make = gb.DistributedItemSampler if options.pop("distributed", False) else gb.ItemSampler
        pipe = make(items, **of_items).copy_to(self.device).sample_neighbor(graph, fanouts).fetch_feature(store, ["x"])
        options = {"persistent_workers": False} | options
        return gb.DataLoader(pipe if each is None else pipe.transform(function), **options)

    def take(self, batch: Any) -> Taken:
        ids = torch.cat([layer.original_edge_ids for layer in reversed(batch.sampled_subgraphs)])
        return Taken(batch.seeds, batch.input_nodes, ids, batch.node_features["x"])

    def real(self, batch: Any) -> Taken:
        seeds, n_id, e_id, x = self.take(batch)
        edges = torch.cat([layer.edge_mask for layer in reversed(batch.sampled_subgraphs)])
        return Taken(seeds[batch.seed_mask], n_id[batch.node_mask], e_id[edges], x[batch.node_mask])

    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        from group_stand_ins import gb_on_stand_in

        monkeypatch.setattr(self, "device", "cuda")
        return gb_on_stand_in(monkeypatch)


class Toy(Harness):
    """The adapter in docs/project/new-adapter.md."""

    name = "toy"
    sharing, shares_by = {"distributed": True}, "distributed=True"
    names: ClassVar[dict[str, Any]] = {}

    def source(self, ends: Tensor = EDGES, x: Tensor = X) -> Any:
        if not self.names:
            page = Path(__file__).parents[2] / "docs" / "project" / "new-adapter.md"
            with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
                for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
                    exec(compile(code, str(page), "exec"), self.names)
        return self.names["ToyGraph"](*ends, x)

    def make(self, source: Any, *, seeds: Tensor, fanouts: list[int], each: Any, **options: Any) -> Any:
        return self.names["ToyLoader"](source, seeds, fanouts, **options)

    def take(self, batch: Any) -> Taken:
        return Taken(batch["nodes"][: batch["num_seeds"]], batch["nodes"], batch["edge_ids"], batch["x"])


HARNESSES = {harness.name: harness() for harness in (PyG, DGL, GraphBolt, Toy)}
