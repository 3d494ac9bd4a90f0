"""DGL's own layers give the same on torch tensors as with its C++, with the gradients of inputs and parameters."""

import dgl.nn.pytorch as dnn
import pytest
import torch
from torch_graphs import block, compare, heterogeneous, homogeneous

# Warnings of torch about what DGL's layers do.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]
HOW = ("sum", "max", "mean")
IN, OUT = 6, 4
GENERATOR = torch.Generator().manual_seed(3)
X, EDGES, WEIGHTS = (torch.rand(n, f, generator=GENERATOR) + 0.1 for n, f in ((40, IN), (300, IN), (300, 1)))
ETYPES = torch.randint(0, 3, (300,), generator=GENERATOR)
NTYPES = torch.randint(0, 2, (40,), generator=GENERATOR)
FREE = {"allow_zero_in_degree": True}


def linear():
    return torch.nn.Linear(IN, OUT)


def plain(m, g, x):
    return m(g, x)


def weighted(m, g, x, w):
    return m(g, x, edge_weight=w)


def with_edges(m, g, x, e):
    return m(g, x, e)


def typed(m, g, x, w):
    return m(g, x, ETYPES, w)


# Layer -> variants, each a module, how it is called, and what with.
LAYERS = {
    "AGNNConv": [(lambda: dnn.AGNNConv(**FREE), plain, X)],
    "APPNPConv": [(lambda: dnn.APPNPConv(3, 0.5), plain, X)],
    "AtomicConv": [
        (
            lambda: dnn.AtomicConv(torch.ones(2), torch.zeros(2), torch.ones(2), torch.tensor([1.0, 2.0])),
            with_edges,
            NTYPES.float().unsqueeze(1) + 1,
            WEIGHTS,
        )
    ],
    "CFConv": [(lambda: dnn.CFConv(IN, IN, 8, OUT), with_edges, X, EDGES)],
    "ChebConv": [(lambda: dnn.ChebConv(IN, OUT, 3), lambda m, g, x: m(g, x, [2.0]), X)],
    "DGNConv": [
        (
            lambda: dnn.DGNConv(IN, OUT, ["dir1-av", "dir1-dx", "sum"], ["identity", "amplification"], 2.5),
            lambda m, g, x, v: m(g, x, eig_vec=v),
            X,
            X[:, :2],
        )
    ],
    "DotGatConv": [(lambda: dnn.DotGatConv(IN, OUT, 3, **FREE), plain, X)],
    "EGATConv": [(lambda: dnn.EGATConv(IN, IN, OUT, OUT, 3), with_edges, X, EDGES)],
    "EGNNConv": [(lambda: dnn.EGNNConv(IN, 8, OUT, 1), lambda m, g, x, w: m(g, x, x[:, :3], w), X, WEIGHTS)],
    "EdgeConv": [
        (lambda: dnn.EdgeConv(IN, OUT, **FREE), plain, X),
        (lambda: dnn.EdgeConv(IN, OUT, batch_norm=True, **FREE), plain, X),
    ],
    "EdgeGATConv": [(lambda: dnn.EdgeGATConv(IN, IN, OUT, 3, **FREE), with_edges, X, EDGES)],
    "GATConv": [
        (lambda: dnn.GATConv(IN, OUT, 1, **FREE), plain, X),
        (lambda: dnn.GATConv(IN, OUT, 3, residual=True, **FREE), plain, X),
        (lambda: dnn.GATConv(IN, OUT, 3, **FREE), lambda m, g, x, w: m(g, x, edge_weight=w[:, 0]), X, WEIGHTS),
        (lambda: dnn.GATConv(IN, OUT, 3, **FREE), lambda m, g, x: m(g, x, get_attention=True), X),
    ],
    "GATv2Conv": [(lambda: dnn.GATv2Conv(IN, OUT, 3, **FREE), plain, X)],
    "GCN2Conv": [(lambda: dnn.GCN2Conv(IN, 1, **FREE), lambda m, g, x: m(g, x, x * 2), X)],
    "GINConv": [(lambda how=how: dnn.GINConv(linear(), how, learn_eps=True), plain, X) for how in HOW],
    "GINEConv": [(lambda: dnn.GINEConv(linear()), with_edges, X, EDGES)],
    "GMMConv": [(lambda how=how: dnn.GMMConv(IN, OUT, 1, 3, how, **FREE), with_edges, X, WEIGHTS) for how in HOW],
    "GatedGCNConv": [(lambda: dnn.GatedGCNConv(IN, IN, OUT, batch_norm=False), with_edges, X, EDGES)],
    "GatedGraphConv": [
        (lambda: dnn.GatedGraphConv(IN, IN, 2, 3), lambda m, g, x: m(g, x, ETYPES), X),
        (lambda: dnn.GatedGraphConv(IN, IN, 2, 1), plain, X),
    ],
    "GraphConv": [
        *[(lambda n=n: dnn.GraphConv(IN, OUT, n, **FREE), plain, X) for n in ("both", "left", "right", "none")],
        (lambda: dnn.GraphConv(IN, 9, **FREE), plain, X),
        (lambda: dnn.GraphConv(IN, OUT, **FREE), weighted, X, WEIGHTS),
    ],
    # It frees its input, which therefore is no leaf.
    "GroupRevRes": [(lambda: dnn.GroupRevRes(dnn.GraphConv(2, 2, **FREE), 3), lambda m, g, x: m(g, x * 1), X)],
    "HGTConv": [(lambda: dnn.HGTConv(IN, OUT, 3, 2, 3, dropout=0.0), lambda m, g, x: m(g, x, NTYPES, ETYPES), X)],
    "NNConv": [
        (lambda how=how: dnn.NNConv(IN, OUT, torch.nn.Linear(1, IN * OUT), how), with_edges, X, WEIGHTS) for how in HOW
    ],
    "PNAConv": [
        (lambda: dnn.PNAConv(IN, OUT, ["mean", "max", "std", "sum"], ["identity", "amplification"], 2.5), plain, X)
    ],
    "RelGraphConv": [
        (
            lambda r=r: dnn.RelGraphConv(IN, OUT, 3, r, 2 if r else None),
            lambda m, g, x, w: m(g, x, ETYPES, w),
            X,
            WEIGHTS,
        )
        for r in (None, "basis", "bdd")
    ],
    "SAGEConv": [
        *[(lambda how=how: dnn.SAGEConv(IN, OUT, how), plain, X) for how in ("mean", "gcn", "pool", "lstm")],
        (lambda: dnn.SAGEConv(IN, OUT, "mean"), weighted, X, WEIGHTS),
    ],
    "SGConv": [(lambda: dnn.SGConv(IN, OUT, 2, allow_zero_in_degree=True), plain, X)],
    "TAGConv": [(lambda: dnn.TAGConv(IN, OUT), plain, X), (lambda: dnn.TAGConv(IN, OUT), weighted, X, WEIGHTS[:, 0])],
    "TWIRLSConv": [(lambda: dnn.TWIRLSConv(IN, OUT, 8, 2), plain, X)],
    "TWIRLSUnfoldingAndAttention": [(lambda: dnn.TWIRLSUnfoldingAndAttention(IN, 1.0, 1.0, 3, tau=0.2), plain, X)],
    "EdgeWeightNorm": [
        (lambda n=n: dnn.EdgeWeightNorm(n, eps=1e-3), lambda m, g, w: m(g, w[:, 0]), WEIGHTS) for n in ("both", "right")
    ],
}
WITHOUT_GRAPHS = {"DenseChebConv", "DenseGraphConv", "DenseSAGEConv"}  # they take matrices
NEED_CUGRAPH = {"CuGraphGATConv", "CuGraphRelGraphConv", "CuGraphSAGEConv"}  # of RAPIDS, which brings its own kernels


def test_every_layer_of_dgl_is_compared():
    assert set(LAYERS) == set(dnn.conv.__all__) - WITHOUT_GRAPHS - NEED_CUGRAPH


def module_of(make):
    torch.manual_seed(0)
    return make().eval() if make is not None else None


@pytest.mark.parametrize(("name", "variant"), [(name, i) for name, made in LAYERS.items() for i in range(len(made))])
def test_a_layer_on_a_graph(name, variant):
    make, call, *tensors = LAYERS[name][variant]
    compare(call, homogeneous(empty=False), *tensors, module=module_of(make), rtol=1e-4, atol=1e-5)


def ends(m, g, x):
    return m(g, (x, x[: g.num_dst_nodes()]))


def ends_and_edges(m, g, x, e):
    return m(g, (x, x[: g.num_dst_nodes()]), e)


ON_BLOCKS = {
    "SAGEConv mean": (lambda: dnn.SAGEConv(IN, OUT, "mean"), ends),
    "SAGEConv pool": (lambda: dnn.SAGEConv(IN, OUT, "pool"), ends),
    "GraphConv": (lambda: dnn.GraphConv(IN, OUT, **FREE), plain),
    "GATConv": (lambda: dnn.GATConv(IN, OUT, 3, residual=True, **FREE), ends),
    "GINConv": (lambda: dnn.GINConv(linear(), "max"), ends),
    "GINEConv": (lambda: dnn.GINEConv(linear()), ends_and_edges),
    "NNConv": (lambda: dnn.NNConv(IN, OUT, torch.nn.Linear(IN, IN * OUT)), ends_and_edges),
}


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ON_BLOCKS)
def test_a_layer_on_a_block(name, idtype):
    make, call = ON_BLOCKS[name]
    g = block(idtype)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.rand(60, IN, generator=generator)]
    if call is ends_and_edges:
        tensors.append(torch.rand(g.num_edges(), IN, generator=generator))
    compare(call, g, *tensors, module=module_of(make), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aggregate", ["sum", "max", "mean", "stack"])
def test_layers_of_edge_types(aggregate):
    g = heterogeneous()
    layers = {
        "follows": lambda: dnn.GraphConv(IN, OUT, **FREE),
        "rates": lambda: dnn.SAGEConv(IN, OUT, "pool"),
        "fan": lambda: dnn.SAGEConv(IN, OUT, "mean"),
    }
    made = module_of(lambda: dnn.HeteroGraphConv({kind: make() for kind, make in layers.items()}, aggregate))

    def forward(m, g, users, films):
        out = m(g, {"user": users, "film": films})
        return [out[kind].flatten(1) for kind in ("user", "film")]

    compare(forward, g, X[:30], X[:12], module=made, rtol=1e-4, atol=1e-5)
