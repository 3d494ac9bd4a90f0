"""Sums, means and softmaxes of graphs on torch tensors in one kernel: as DGL's C++, by torch and by our kernels."""

import dgl
import dgl.function as fn
import dgl.nn.pytorch as dnn
import pytest
import torch
from torch_graphs import block, compare, heterogeneous, homogeneous, on_torch

from manyhop_dgl_cuda import kernels

FEW = {"num_src": 12, "num_dst": 6, "num_edges": 30}


@pytest.fixture(params=["torch", "triton"], autouse=True)
def way(request, monkeypatch):
    """The operators of torch, or our kernels, in triton's interpreter."""
    if request.param == "triton":
        if torch.cuda.is_available():
            pytest.skip("triton compiles: see test_torch_graph_gpu.py")
        monkeypatch.setattr(kernels, "_has_kernels", lambda table: True)


def rows(n, *shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(n)) + 0.5


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_operators(idtype):
    g = block(idtype)
    compare(dgl.ops.copy_u_sum, g, rows(60, 3, 4))
    compare(dgl.ops.copy_u_mean, g, rows(60, 5))
    compare(dgl.ops.u_mul_e_sum, g, rows(60, 6), rows(200, 1))
    compare(dgl.ops.u_mul_e_sum, g, rows(60, 3, 4), rows(200, 3, 1))
    compare(dgl.ops.u_mul_e_mean, g, rows(60, 3, 4), rows(200, 3, 1))
    compare(dgl.ops.copy_e_sum, g, rows(200, 7))
    compare(dgl.ops.u_add_v, g, rows(60, 3, 1), rows(20, 3, 1))
    compare(dgl.ops.u_dot_v, g, rows(60, 3, 4), rows(20, 3, 4))
    compare(lambda g, x: dgl.ops.gspmm(g, "copy_lhs", "mean", lhs_data=x, rhs_data=None), g, rows(60, 5))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("copy_u_sum", [(12, 3, 4)]),
        ("copy_u_mean", [(12, 3, 4)]),
        ("copy_u_max", [(12, 3, 4)]),
        ("copy_e_min", [(30, 5)]),
        ("u_mul_e_sum", [(12, 3, 4), (30, 3, 1)]),
        ("u_dot_v", [(12, 3, 4), (6, 3, 4)]),
        ("u_add_v", [(12, 3, 1), (6, 3, 1)]),
    ],
)
def test_results_can_be_changed_in_place(name, shapes):
    compare(lambda g, *x: getattr(dgl.ops, name)(g, *x).add_(1).mul_(2), block(**FEW), *(rows(*s) for s in shapes))


def test_the_result_of_a_layer_can_be_changed_in_place():
    layer = dnn.GATConv(6, 4, 3, allow_zero_in_degree=True, bias=False)
    compare(lambda layer, g, x: layer(g, x).add_(1), homogeneous(), rows(40, 6), module=layer)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_columns_of_a_loader(idtype):
    g = block(idtype)
    indptr, indices, _ = g.adj_tensors("csc")
    ids = torch.tensor([], dtype=idtype)  # 0, 1, 2, ...
    compare(dgl.ops.copy_u_mean, dgl.create_block(("csc", (indptr, indices, ids)), 60, 20, idtype=idtype), rows(60, 5))


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_maxima_with_ties(reduce, idtype):
    g = block(idtype, **FEW)
    ties = torch.randint(0, 3, (12, 5), generator=torch.Generator().manual_seed(0)).float()
    hub = dgl.create_block((torch.arange(200) % 50, torch.zeros(200, dtype=torch.int64)), 50, 2, idtype=idtype)
    compare(getattr(dgl.ops, f"copy_u_{reduce}"), g, ties)
    compare(getattr(dgl.ops, f"copy_e_{reduce}"), g, ties.repeat(3, 1)[:30])
    compare(getattr(dgl.ops, f"u_mul_e_{reduce}"), g, ties, ties.repeat(3, 1)[:30] - 1)
    compare(getattr(dgl.ops, f"copy_u_{reduce}"), hub, ties.repeat(5, 1)[:50])


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_softmax(norm_by):
    for shape in ((), (1,), (3, 1), (2, 3)):
        compare(lambda g, e: dgl.ops.edge_softmax(g, e, norm_by=norm_by), block(), 30 * rows(200, *shape))


def test_some_edges_keep_the_way_of_dgl():
    some = torch.arange(0, 200, 3)
    for norm_by in ("dst", "src"):
        compare(lambda g, e, n=norm_by: dgl.ops.edge_softmax(g, e, some, n), block(), rows(len(some), 3, 1))


@pytest.mark.parametrize("options", [
    {"residual": True, "activation": torch.tanh}, {"residual": True, "bias": False}, {"attn_drop": 0.5},
])  # fmt: skip
def test_attention(options):
    torch.manual_seed(0)
    layer = dnn.GATConv(6, 4, 3, negative_slope=0.3, allow_zero_in_degree=True, **options).eval()
    for g, n in ((homogeneous(), 40), (block(), 60), (homogeneous(empty=False), 40)):
        compare(lambda layer, g, x: layer(g, x), g, rows(n, 6) - 1, module=layer)


def test_means():
    torch.manual_seed(0)
    for make in (
        lambda: dnn.SAGEConv(6, 4, "mean", norm=torch.nn.Tanh(), activation=torch.sin),
        lambda: dnn.SAGEConv(6, 9, "mean", bias=False),
        lambda: dnn.SAGEConv((6, 6), 9, "mean"),
    ):
        for g, n in ((homogeneous(), 40), (block(), 60)):
            compare(lambda layer, g, x: layer(g, x), g, rows(n, 6), module=make())
    for kind in ("gcn", "pool"):
        compare(lambda layer, g, x: layer(g, x), block(), rows(60, 6), module=dnn.SAGEConv(6, 4, kind))
    layer = dnn.SAGEConv(6, 4, "mean")
    compare(lambda layer, g, x, w: layer(g, x, w), block(), rows(60, 6), rows(200, 1), module=layer)
    compare(lambda layer, g, x, y: layer(g, (x, y)), block(), rows(60, 6), rows(20, 6), module=layer)
    empty = dgl.create_block(([], []), 60, 20)
    compare(lambda layer, g, x: layer(g, x), empty, rows(60, 6), module=layer)
    with pytest.raises(dgl.DGLError, match="number of features to match number of nodes"):
        layer(on_torch(block()), rows(59, 6))


def test_attention_keeps_the_way_of_dgl():
    """Of what the short way does not compute, and the errors."""
    torch.manual_seed(0)
    layer = dnn.GATConv(6, 4, 3, attn_drop=0.5, allow_zero_in_degree=True)
    assert len(layer(on_torch(block()), rows(60, 6), get_attention=True)) == 2
    compare(lambda layer, g, x, w: layer.eval()(g, x, w), block(), rows(60, 6), rows(200), module=layer)
    compare(lambda layer, g, x, y: layer.eval()(g, (x, y)), block(), rows(60, 6), rows(20, 6), module=layer)
    layer.set_allow_zero_in_degree(False)
    with pytest.raises(dgl.DGLError, match="0-in-degree"):
        layer.eval()(on_torch(block()), rows(60, 6))
    with pytest.raises(dgl.DGLError, match="number of features to match number of nodes"):
        dnn.GATConv(6, 4, 3, allow_zero_in_degree=True)(on_torch(block(num_src=15, num_dst=20)), rows(15, 6))
    called = []
    layer.set_allow_zero_in_degree(True)
    layer.leaky_relu.register_forward_hook(lambda *args: called.append(args))
    layer(on_torch(block()), rows(60, 6))
    assert called


def test_second_derivatives_of_attention():
    torch.manual_seed(0)
    layer, g = dnn.GATConv(3, 2, 2, allow_zero_in_degree=True).double(), on_torch(block(**FEW))
    x = rows(12, 3).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(g, x)[:4], (x,), fast_mode=True)
    layer.attn_l.requires_grad_(False)
    for inputs in ((x, layer.attn_r), (layer.attn_r,)):
        out = layer(g, x if len(inputs) == 2 else x.detach()).pow(2).sum()
        once = torch.autograd.grad(out, inputs, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(out, inputs, create_graph=True), once)


def test_second_derivatives():
    g = on_torch(block(**FEW))
    u, e = rows(12, 2, 3).double().requires_grad_(), rows(30, 2, 1).double().requires_grad_()

    def attention(u, e):
        scores = e + dgl.ops.u_add_v(g, u[..., :1], u[:6, :, 1:2])
        return dgl.ops.u_mul_e_mean(g, u, dgl.ops.edge_softmax(g, scores))[:4]

    assert torch.autograd.gradcheck(attention, (u, e), fast_mode=True)
    assert torch.autograd.gradgradcheck(attention, (u, e), fast_mode=True)


def test_fewer_calls_of_python():
    """DGL's way counts degrees, makes two autograd functions, and reverses the graph anew."""
    g = on_torch(block())
    sums = dgl.ops.copy_u_sum(g, rows(60, 5).requires_grad_())
    assert type(sums.grad_fn).__name__ == "_SumBackward"
    assert type(dgl.ops.edge_softmax(g, rows(200, 1).requires_grad_()).grad_fn).__name__ == "_SoftmaxBackward"


def test_maxima_over_edge_types():
    g = heterogeneous()
    ties = [torch.randint(0, 3, (n, 3), generator=torch.Generator().manual_seed(n)).float() for n in (30, 12)]

    def forward(g, users, films):
        with g.local_scope():
            g.nodes["user"].data["h"], g.nodes["film"].data["h"] = users, films
            functions = {kind: (fn.copy_u("h", "m"), fn.max("m", "y")) for kind in g.etypes}
            g.multi_update_all(functions, "max")
            return [g.nodes[kind].data["y"] for kind in ("user", "film")]

    compare(forward, g, *ties)
