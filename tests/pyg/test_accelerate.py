"""``accelerate``: unchanged models compute the same by segments of sorted edges, and so do their gradients."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GCNConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    Sequential,
    TransformerConv,
)
from torch_geometric.utils import trim_to_layer

from manyhop.errors import InputError
from manyhop.system import triton_compiler
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, accelerate
from manyhop_pyg.batch.join import is_sorted

pytestmark = pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")  # PyG's, on GPUs
INTERPRETED = pytest.mark.skipif(
    torch.cuda.is_available() or not triton_compiler.usable(), reason="triton compiles, or is missing"
)


@pytest.fixture(
    params=["torch", pytest.param("kernels", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request: pytest.FixtureRequest) -> str:
    """Where models run: with torch's operators, with kernels in triton's interpreter, on a GPU."""
    if request.param == "kernels":
        request.getfixturevalue("kernels_everywhere")
    return "cuda" if request.param == "cuda" else "cpu"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How often the engine aggregates."""
    from manyhop_pyg.training import layers

    found: list[Any] = []
    own = layers.aggregate

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        found.append(kwargs["reduce"])
        return own(*args, **kwargs)

    monkeypatch.setattr(layers, "aggregate", counted)
    return found


def run(model: torch.nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> list[Tensor]:
    """The output, and the gradients of inputs and parameters."""
    model.zero_grad()
    inputs = [x.detach().clone().requires_grad_()]
    out = model(inputs[0], *args, **kwargs)
    (out * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)).sum().backward()
    return [out, *(value.grad for value in (*inputs, *model.parameters()))]


def check(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """The accelerated copy of a model computes the same."""
    compare(model, args, args, kwargs)


def compare(model: torch.nn.Module, args: Any, expected_of: Any, kwargs: Any) -> None:
    """The accelerated copy of a model computes of some arguments what the model computes of others."""
    fast = copy.deepcopy(model)
    assert accelerate(fast).reached
    for value, expected in zip(run(fast, *args, **kwargs), run(model, *expected_of, **kwargs), strict=True):
        torch.testing.assert_close(value, expected, rtol=2e-5, atol=2e-5)


def batch_of(data: Any, device: str, **options: Any) -> Any:
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1, **options)
    return next(iter(loader)).to(device)


CONVS: dict[str, Any] = {
    "sage mean": lambda: SAGEConv(4, 6),
    "sage sum": lambda: SAGEConv(4, 6, aggr="sum", normalize=True),
    "sage max": lambda: SAGEConv(4, 6, aggr="max", project=False, root_weight=False),
    "gcn": lambda: GCNConv(4, 6),
    "gcn to fewer channels": lambda: GCNConv(4, 3),
    "gcn without loops": lambda: GCNConv(4, 6, add_self_loops=False, bias=False),
    "gcn without norm": lambda: GCNConv(4, 6, normalize=False),
    "graph": lambda: GraphConv(4, 6),
    "graph mean": lambda: GraphConv(4, 6, aggr="mean"),
    "graph max": lambda: GraphConv(4, 6, aggr="max"),
}


@pytest.mark.parametrize("pad", [None, "auto"])
@pytest.mark.parametrize("name", CONVS)
def test_layers(data, device, calls, name, pad):
    batch = batch_of(data, device, pad=pad)
    model = Sequential("x, edge_index", [(CONVS[name](), "x, edge_index -> x")]).to(device)
    # Without zeros: where maxima are zero, PyG's gradients are too small.
    check(model, torch.randn_like(batch.x), batch.edge_index)
    assert calls


@pytest.mark.parametrize(
    "name", ["gcn", "gcn to fewer channels", "gcn without loops", "gcn without norm", "graph", "graph mean"]
)
def test_layers_with_weights(data, device, calls, name):
    keep = data.edge_index[0] != data.edge_index[1]  # of several loops at a node, PyG takes the weight of any
    data = data.edge_subgraph(keep)
    data.edge_index[:, 0] = 7  # one loop
    batch = batch_of(data, device)
    weight = batch.edge_weight.clone().requires_grad_()
    model = Sequential("x, edge_index, edge_weight", [(CONVS[name](), "x, edge_index, edge_weight -> x")]).to(device)
    check(model, batch.x, batch.edge_index, weight)
    check(model, batch.x, batch.edge_index.flip(1), weight.flip(0))
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["gcn", "gcn to fewer channels", "graph"])
def test_gradients_of_weights(data, device, name):
    batch = batch_of(data.edge_subgraph(data.edge_index[0] != data.edge_index[1]), device)
    conv, grads = CONVS[name]().to(device), []
    for _ in range(2):
        weight = batch.edge_weight.clone().requires_grad_()
        conv(batch.x, batch.edge_index, weight).square().sum().backward()
        grads.append(weight.grad)
        accelerate(conv)
    torch.testing.assert_close(*grads, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pad", [None, "auto"])
@pytest.mark.parametrize("kind", [GraphSAGE, GIN, GCN, GAT, functools.partial(GAT, heads=2, v2=True)])
def test_models_that_trim(data, device, calls, kind, pad):
    torch.manual_seed(3)
    batch = batch_of(data, device, pad=pad)
    model = kind(4, 8, 2, 3).to(device)
    sizes = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
    check(model, batch.x, batch.edge_index, **sizes)
    check(model, batch.x, batch.edge_index)
    assert len(calls) == 4


def test_types_and_bipartite_edges(hetero, device, calls):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = kinds = [
                ("author", "writes", "paper"),
                ("paper", "cites", "paper"),
                ("paper", "rev_writes", "author"),
            ]
            sizes = {"paper": 3, "author": 5}
            self.convs = torch.nn.ModuleList(
                HeteroConv({k: SAGEConv((sizes[k[0]], sizes[k[2]]), s) for k, s in zip(kinds, (3, 3, 5), strict=True)})
                for _ in range(2)
            )

        def forward(self, x: Tensor, batch: Any) -> Tensor:
            xs = {"paper": x, "author": batch["author"].x}
            edges = {e: batch[e].edge_index for e in self.kinds}
            for layer, conv in enumerate(self.convs):
                nodes, hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
                nodes, hops = {t: nodes[t] for t in xs}, {e: hops[e] for e in edges}
                xs, edges, _ = trim_to_layer(layer, nodes, hops, xs, edges)
                xs = {t: value.tanh() for t, value in conv(xs, edges).items()}
            return xs["paper"]

    loader = NeighborLoader(hetero, [3, 2], input_nodes="paper", batch_size=8, seed=1)
    batch = next(iter(loader)).to(device)
    check(Model().to(device), batch["paper"].x, batch)
    assert len(calls) == 6


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_edges_in_any_order(data, device, calls, index):
    conv, x, edge_index = SAGEConv(4, 6).to(device), data.x.to(device), data.edge_index.to(device)
    by_col = EdgeIndex(edge_index.to(index), sparse_size=(60, 60)).sort_by("col").values
    for given in (edge_index.to(index), by_col):  # PyG's gradients are wrong for int32 (PyG 2.8)
        compare(conv, (x, given), (x, edge_index), {})
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(data, device, calls, dtype):
    batch = batch_of(data, device)
    for kind in (GraphSAGE, GCN, GAT, functools.partial(GAT, v2=True)):
        model = kind(4, 8, 2, 3).to(device)
        fast = copy.deepcopy(model)
        accelerate(fast)
        with torch.autocast(device, dtype):
            outs = [net(batch.x, batch.edge_index) for net in (fast, model)]
        assert outs[0].dtype == outs[1].dtype
        torch.testing.assert_close(*outs, rtol=3e-2, atol=3e-2)
        out = fast.to(dtype)(batch.x.to(dtype), batch.edge_index)
        torch.testing.assert_close(out.float(), outs[1].float(), rtol=3e-2, atol=3e-2)
    assert len(calls) == 16


OPTIONS: list[dict[str, Any]] = [
    {},
    {"pad": "auto"},
    {"num_neighbors": [-1, -1, -1], "pad": "auto"},
    {"subgraph_type": "induced"},
    {"subgraph_type": "induced", "pad": "auto"},
    {"subgraph_type": "bidirectional", "pad": "auto"},
    {"disjoint": True, "pad": "auto"},
    {"replace": True},
    {"time_attr": "time"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_sorted_where_they_are_marked(data, options):
    options = {"num_neighbors": [3, 2], "batch_size": 8, "seed": 1} | options
    marked = 0
    for batch in NeighborLoader(data, input_nodes=torch.randint(0, 60, (40,)), **options):
        if is_sorted(batch.edge_index):
            marked += 1
            assert (batch.edge_index[1].diff() >= 0).all()
    assert marked == 5


def test_batches_of_types_and_of_links_are_sorted(hetero, data):
    for batch in NeighborLoader(hetero, [3, 2], input_nodes="paper", batch_size=8, pad="auto"):
        for e in batch.edge_types:
            assert is_sorted(batch[e].edge_index)
            assert (batch[e].edge_index[1].diff() >= 0).all()
    for batch in LinkNeighborLoader(data, [3, 2], batch_size=16, neg_sampling="binary"):
        assert is_sorted(batch.edge_index)
        assert (batch.edge_index[1].diff() >= 0).all()


@pytest.mark.parametrize(
    "options",
    [{"transform_sampler_output": lambda out: out}, {"transform": lambda batch: batch.clone()}],
    ids=["sample", "batch"],
)
def test_changed_batches_are_not_marked(data, options):
    assert not is_sorted(batch_of(data, "cpu", **options).edge_index)


def test_the_layers_reached_and_the_others():
    class Own(SAGEConv):
        """Has messages of its own."""

    model = torch.nn.ModuleDict(
        {
            "a": SAGEConv(4, 4),
            "b": TransformerConv(4, 4),
            "c": Own(4, 4),
            "d": SAGEConv(4, 4, aggr="lstm"),
            "e": GCNConv(4, 4, improved=True),
            "f": GraphConv(4, 4, flow="target_to_source"),
        }
    )
    found = accelerate(model)
    assert found.reached == ["a"]
    assert list(found.others) == ["b", "c", "d", "e", "f"]
    assert "TransformerConv is none of SAGEConv, GCNConv" in found.others["b"]
    assert "flow='target_to_source'" in found.others["f"]
    assert accelerate(model).others["a"] == "it is accelerated already"
    with pytest.raises(InputError, match=r"Expected a torch\.nn\.Module, got a int"):
        accelerate(3)


def test_hooks_and_other_shapes_run_pygs_code(data, calls):
    conv = SAGEConv(4, 6)
    expected = conv(data.x, data.edge_index)
    accelerate(conv)
    assert conv(data.x.expand(2, 60, 4), data.edge_index).shape == (2, 60, 6)
    seen: list[int] = []
    conv.register_message_forward_hook(lambda module, args, out: seen.append(len(out)))
    torch.testing.assert_close(conv(data.x, data.edge_index), expected)
    assert seen == [300]
    assert calls == []


def test_copies_pickles_and_states(data, calls, tmp_path):
    model = GraphSAGE(4, 8, 2, 3)
    expected = model(data.x, data.edge_index)
    keys = list(model.state_dict())
    accelerate(model)
    assert list(model.state_dict()) == keys
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert type(other.convs[0]) is type(model.convs[0])
        calls.clear()
        torch.testing.assert_close(other(data.x, data.edge_index), expected)
        assert calls == ["mean", "mean"]


def test_torch_compile(data, device):
    batch = batch_of(data, device)
    model = GraphSAGE(4, 8, 2, 3).to(device)
    expected = run(model, batch.x, batch.edge_index)
    accelerate(model)
    compiled = torch.compile(model, backend="aot_eager")
    for value, right in zip(run(compiled, batch.x, batch.edge_index), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=2e-5, atol=2e-5)


def test_in_inference_mode(data, device):
    """Batches that are made in inference mode have tensors without versions."""
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1)
    model = GraphSAGE(4, 8, 2, 3).to(device)
    fast = copy.deepcopy(model)
    assert accelerate(fast).reached
    with torch.inference_mode():
        for batch in (loader.batch([3, 4]), next(iter(loader))):
            batch = batch.to(device)
            assert torch.allclose(model(batch.x, batch.edge_index), fast(batch.x, batch.edge_index), atol=1e-5)
