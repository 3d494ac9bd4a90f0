"""``accelerate(trim=True)``: unchanged models compute the same for seeds, whose layers leave out all else."""

import copy
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from captured_runs import OPTIMIZERS, Run
from test_accelerate import device  # noqa: F401  # a fixture
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    to_hetero,
)

from manyhop_pyg import LinkNeighborLoader, NeighborLoader, accelerate
from manyhop_pyg.batch.join import is_sorted, mark_sorted
from manyhop_pyg.training import layers, trim

pytestmark = pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")  # PyG's, on GPUs

CONVS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    "sage": SAGEConv,
    "sage max": lambda i, o: SAGEConv(i, o, aggr="max", project=True),
    "gcn": GCNConv,
    "gcn without norm": lambda i, o: GCNConv(i, o, normalize=False),
    "gin": lambda i, o: GINConv(torch.nn.Linear(i, o), train_eps=True),
    "graph": GraphConv,
    "gat": lambda i, o: GATConv(i, o, heads=2, concat=False),
    "gat without loops": lambda i, o: GATConv(i, o, add_self_loops=False, residual=True),
    "gatv2": GATv2Conv,
}


class Net(torch.nn.Module):
    """Layers as in PyG's examples, without a word of hops."""

    def __init__(self, conv: Callable[[int, int], torch.nn.Module], layers: int = 2, **more: Any) -> None:
        super().__init__()
        torch.manual_seed(layers)
        sizes = [4, *[8] * (layers - 1), 3]
        self.convs = torch.nn.ModuleList(conv(i, o, **more) for i, o in pairwise(sizes))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Tensor, edge_index: Tensor, *args: Any) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.norm(conv(x, edge_index, *args)).tanh()
        return self.convs[-1](x, edge_index, *args)


def trimmed(model: torch.nn.Module, *args: Any) -> torch.nn.Module:
    """An accelerated copy, which has been called."""
    fast = copy.deepcopy(model)
    assert accelerate(fast, trim=True).others == {}
    fast(*args)
    return fast


def loss_and_gradients(out: Tensor, num_seeds: int, model: torch.nn.Module) -> list[Tensor]:
    """Of a loss of the seeds' rows."""
    out = out[:num_seeds]
    loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)).sum()
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        out,
        *(grad if grad is not None else torch.zeros_like(p) for grad, p in zip(grads, parameters, strict=True)),
    ]


def check(model: torch.nn.Module, fast: torch.nn.Module, num_seeds: int, *args: Any) -> Tensor:
    """The trimmed model computes the same for seeds; returns its output."""
    out = fast(*args)
    got, expected = loss_and_gradients(out, num_seeds, fast), loss_and_gradients(model(*args), num_seeds, model)
    for value, right in zip(got, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=2e-5, atol=2e-5)
    return out


def check_all(model: torch.nn.Module, batches: list[Any], attribute: str | None = None) -> list[Tensor]:
    """The trimmed model computes the same for the seeds of all batches, also of an attribute of edges."""
    inputs = [[batch.x, batch.edge_index, *([] if attribute is None else [batch[attribute]])] for batch in batches]
    fast = trimmed(model, *inputs[0])
    return [check(model, fast, batch.batch_size, *given) for batch, given in zip(batches, inputs, strict=True)]


def batches_of(data: Any, device: str, **options: Any) -> list[Any]:  # noqa: F811
    """Three batches of 8, and their last one, which is smaller; on the GPU they are made there."""
    seeds = torch.arange(0, 58, 2)
    options = {"num_neighbors": [3, 2], "batch_size": 8, "input_nodes": seeds, "seed": 1, "device": device} | options
    return list(NeighborLoader(data, **options))


def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Sources, destinations and edges of each aggregation from now on."""
    found: list[tuple[int, int, int]] = []
    own = layers.aggregate

    def seen(x: Tensor, edges: Any, **options: Any) -> Tensor:
        found.append((x.size(0), options["num_dst"], options["num_edges"]))
        return own(x, edges, **options)

    monkeypatch.setattr(layers, "aggregate", seen)
    return found


@pytest.mark.parametrize("pad", [None, "auto"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("name", CONVS)
def test_seeds_get_the_same(data, name, layers, pad):
    batches = batches_of(data, "cpu", num_neighbors=[3, 2, 2][:layers], pad=pad)
    for batch, out in zip(batches, check_all(Net(CONVS[name], layers), batches), strict=True):
        assert out.size(0) == batch.num_sampled_nodes[0] < batch.num_nodes


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_kernels(data, device, name):  # noqa: F811
    check_all(Net(CONVS[name]).to(device), batches_of(data, device, pad="auto")[:2])


@pytest.mark.parametrize("kind", [GraphSAGE, GIN, GAT, GCN])
def test_pygs_models_with_counts_per_hop_trim_by_these(data, kind, caplog):
    torch.manual_seed(0)
    model = kind(4, 8, 2, 3).eval()
    fast = copy.deepcopy(model)
    accelerate(fast, trim=True)
    for batch in batches_of(data, "cpu", num_neighbors=[3, 2]):
        counts = (batch.num_sampled_nodes, batch.num_sampled_edges)
        arguments = {"num_sampled_nodes_per_hop": counts[0], "num_sampled_edges_per_hop": counts[1]}
        expected = model(batch.x, batch.edge_index, **arguments)
        torch.testing.assert_close(fast(batch.x, batch.edge_index, **arguments), expected, rtol=2e-5, atol=2e-5)
    (message,) = caplog.messages
    assert "the model passes other edges than those of the batch to some layers" in message


@pytest.mark.parametrize(("layers", "fanouts"), [(1, [3, 2]), (2, [3, 2, 2]), (3, [3, 2])])
@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_other_numbers_of_hops_than_of_layers(data, name, layers, fanouts):
    check_all(Net(CONVS[name], layers), batches_of(data, "cpu", num_neighbors=fanouts))


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_layers_compute_what_the_following_ones_need(data, name, monkeypatch):
    """In the untrimmed first call, all; afterwards the hops that ``trim_to_layer`` leaves, and fewer destinations."""
    model = Net(CONVS[name], 2)
    first, batch = batches_of(data, "cpu", num_neighbors=[3, 2])[:2]
    accelerate(model, trim=True)
    found = lengths(monkeypatch)
    model(first.x, first.edge_index)
    assert found == [(first.num_nodes, first.num_nodes, first.num_edges)] * 2
    found.clear()
    model(batch.x, batch.edge_index)
    n, e = list(accumulate(batch.num_sampled_nodes)), list(accumulate(batch.num_sampled_edges))
    assert found == [(n[2], n[1], e[1]), (n[1], n[0], e[0])]
    assert n[0] < n[1] < n[2]


@pytest.mark.parametrize("wrapped", [False, True])
def test_edges_are_sorted_by_destination_once(data, monkeypatch, wrapped):
    """Shorter edges use the order of all edges, also where the first layer leaves some out."""
    if wrapped:
        data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    batches = batches_of(data, "cpu", num_neighbors=[3, 2, 2])
    made: list[tuple[int, bool]] = []

    class Seen(trim.Edges):
        def __init__(self, edge_index: Tensor, *, ordered: bool, **options: Any) -> None:
            super().__init__(edge_index, ordered=ordered, **options)
            made.append((edge_index.size(1), ordered))

    model = Net(SAGEConv, 2)
    fast = trimmed(model, batches[0].x, batches[0].edge_index)
    monkeypatch.setattr(trim, "Edges", Seen)
    for batch in batches:
        check(model, fast, batch.batch_size, batch.x, batch.edge_index)
    assert made == [(batch.num_edges, True) for batch in batches]


@pytest.mark.parametrize("name", ["gcn", "gcn without norm", "graph"])
def test_weights_of_edges(data, name):
    data = data.edge_subgraph(data.edge_index[0] != data.edge_index[1])  # of several loops, PyG takes any weight
    check_all(Net(CONVS[name]), batches_of(data, "cpu"), "edge_weight")


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_attributes_of_edges(data, kind):
    check_all(Net(kind, edge_dim=1), batches_of(data, "cpu"), "edge_attr")


def test_links(data):
    """Ends of seed edges are seeds."""
    model = Net(SAGEConv)
    loader = LinkNeighborLoader(data, [3, 2], batch_size=16, neg_sampling="binary")
    batches = list(loader)[:4]
    fast = trimmed(model, batches[0].x, batches[0].edge_index)
    for batch in batches:
        num_seeds = batch.num_sampled_nodes[0]
        assert check(model, fast, num_seeds, batch.x, batch.edge_index).size(0) == num_seeds
        assert batch.edge_label_index.max() < num_seeds


KINDS = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "rev_writes", "author")]


class ByConv(torch.nn.Module):
    """Two layers of ``HeteroConv``."""

    def __init__(self, conv: Callable[[Any, int], torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(2)
        first = {"paper": 3, "author": 5}
        self.convs = torch.nn.ModuleList(
            HeteroConv({k: conv((sizes[k[0]], sizes[k[2]]), 6) for k in KINDS}, aggr="sum")
            for sizes in (first, {"paper": 6, "author": 6})
        )

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x = {t: value.tanh() for t, value in conv(x, edges).items()}
        return x["paper"]


def by_to_hetero(conv: Any) -> torch.nn.Module:
    class Papers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            net = GraphSAGE((-1, -1), 6, 2, 3) if conv is SAGEConv else GAT((-1, -1), 6, 2, 3, add_self_loops=False)
            self.net = to_hetero(net, (["paper", "author"], KINDS))

        def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
            return self.net(x, edges)["paper"]

    return Papers()


def check_types(hetero: Any, device: str, make: Any, conv: Any, pad: Any) -> None:  # noqa: F811
    """A model of two layers that predicts papers."""

    def layer(sizes: Any, out: int) -> torch.nn.Module:
        return SAGEConv(sizes, out) if conv is SAGEConv else GATConv(sizes, out, add_self_loops=False)

    loader = NeighborLoader(hetero, [3, 2], input_nodes="paper", batch_size=8, seed=1, pad=pad, device=device)
    batches = list(loader)[:3]
    inputs = [({t: b[t].x for t in ("paper", "author")}, {e: b[e].edge_index for e in KINDS}) for b in batches]
    model = make(layer if make is ByConv else conv).to(device)
    model(*inputs[0])  # of lazy layers
    fast = trimmed(model, *inputs[0])
    for batch, (x, edges) in zip(batches, inputs, strict=True):
        out = check(model, fast, batch["paper"].batch_size, x, edges)
        assert out.size(0) == batch["paper"].num_sampled_nodes[0] < x["paper"].size(0)


@pytest.mark.parametrize("pad", [None, "auto"])
@pytest.mark.parametrize("make", [ByConv, by_to_hetero])
@pytest.mark.parametrize("conv", [SAGEConv, GATConv])
def test_types(hetero, make, conv, pad):
    check_types(hetero, "cpu", make, conv, pad)


def test_one_layer_that_is_called_twice(data):
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(4, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(self.conv(x, edge_index).relu(), edge_index)

    batches = batches_of(data, "cpu")
    assert [len(out) for out in check_all(Twice(), batches)] == [batch.batch_size for batch in batches]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_captured_steps(data, tape, optimizer, monkeypatch):
    expected = Run(data, optimizer=optimizer).losses()
    for captured in (False, True):
        run = Run(data, captured=captured, optimizer=optimizer)
        accelerate(run.model, trim=True)
        found = lengths(monkeypatch)
        torch.testing.assert_close(run.losses(), expected, rtol=1e-3, atol=1e-3)
        sizes = list(accumulate(next(iter(run.loader)).num_sampled_nodes))
        assert [dst for _, dst, _ in found[-2:]] == [sizes[1], sizes[0]]
    assert (run.step.eager, run.step.replayed, run.step.graphs) == (3, 21, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["sage", "gcn", "gin", "graph", "gat"])
@pytest.mark.parametrize("captured", [False, True])
def test_200_steps_on_a_gpu(data, kind, captured):
    losses = []
    for trims in (False, True):
        run = Run(data, "cuda", captured=captured and trims)
        run.model = Net(CONVS[kind]).cuda()
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.02)
        if trims:
            accelerate(run.model, trim=True)
        losses.append(run.losses(epochs=25))
    if captured:
        assert run.step.replayed > 190
    torch.testing.assert_close(losses[1][:200], losses[0][:200], rtol=2e-2, atol=2e-2)


def test_ddp(data, tmp_path):
    batches = batches_of(data, "cpu")
    model = Net(SAGEConv)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        inside = copy.deepcopy(model)
        accelerate(inside, trim=True)
        outside = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        accelerate(outside, trim=True)
        for fast in (torch.nn.parallel.DistributedDataParallel(inside), outside):
            for number, batch in enumerate(batches):
                out, expected = (net(batch.x, batch.edge_index) for net in (fast, model))
                assert (out.size(0) == batch.batch_size) == (number > 0)
                torch.testing.assert_close(out[: batch.batch_size], expected[: batch.batch_size])
    finally:
        dist.destroy_process_group()


def test_a_mark_is_of_one_tensor_as_it_was() -> None:
    edge_index = torch.zeros(2, 3, dtype=torch.int64)
    assert not is_sorted(edge_index)
    mark_sorted(edge_index)
    assert is_sorted(edge_index)
    assert not is_sorted(edge_index.clone())
    edge_index[0, 0] = 1
    assert not is_sorted(edge_index)
