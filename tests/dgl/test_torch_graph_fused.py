"""Sums, means and softmaxes of graphs on torch tensors in one kernel: as DGL's C++, by torch and by our kernels."""

import dgl
import dgl.nn.pytorch as dnn
import pytest
import torch
from torch_graphs import block, compare, homogeneous, on_torch

from manyhop_dgl.torch_graphs import kernels


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


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_columns_of_a_loader(idtype):
    g = block(idtype)
    indptr, indices, _ = g.adj_tensors("csc")
    ids = torch.tensor([], dtype=idtype)  # 0, 1, 2, ...
    compare(dgl.ops.copy_u_mean, dgl.create_block(("csc", (indptr, indices, ids)), 60, 20, idtype=idtype), rows(60, 5))


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_softmax(norm_by):
    for shape in ((1,), (3, 1), (2, 3)):
        compare(lambda g, e: dgl.ops.edge_softmax(g, e, norm_by=norm_by), block(), 30 * rows(200, *shape))


def test_some_edges_keep_the_way_of_dgl():
    some = torch.arange(0, 200, 3)
    compare(lambda g, e: dgl.ops.edge_softmax(g, e, eids=some), block(), rows(len(some), 3, 1))


@pytest.mark.parametrize("make", [
    lambda: dnn.GATConv(6, 4, 3, allow_zero_in_degree=True),
    lambda: dnn.SAGEConv(6, 4, "mean"),
    lambda: dnn.GraphConv(6, 4, norm="right", allow_zero_in_degree=True),
])  # fmt: skip
def test_layers(make):
    torch.manual_seed(0)
    compare(lambda layer, g, x: layer(g, x), homogeneous(), rows(40, 6), module=make())


def test_second_derivatives():
    g = on_torch(block())
    u, e = rows(60, 2, 3).double().requires_grad_(), rows(200, 2, 1).double().requires_grad_()

    def attention(u, e):
        scores = e + dgl.ops.u_add_v(g, u[..., :1], u[:20, :, 1:2])
        return dgl.ops.u_mul_e_mean(g, u, dgl.ops.edge_softmax(g, scores))[:4]

    assert torch.autograd.gradcheck(attention, (u, e), fast_mode=True)
    assert torch.autograd.gradgradcheck(attention, (u, e), fast_mode=True)


def test_fewer_calls_of_python():
    """DGL's way counts degrees, makes two autograd functions, and reverses the graph anew."""
    g = on_torch(block())
    sums = dgl.ops.copy_u_sum(g, rows(60, 5).requires_grad_())
    assert type(sums.grad_fn).__name__ == "_SumBackward"
    assert type(dgl.ops.edge_softmax(g, rows(200, 1).requires_grad_()).grad_fn).__name__ == "_SoftmaxBackward"
