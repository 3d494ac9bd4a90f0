"""Message passing on torch tensors gives what DGL's C++ gives on the CPU, gradients included."""

import dgl
import dgl.backend.pytorch.sparse as sparse
import dgl.function as fn
import pytest
import torch
from dgl.nn.functional import edge_softmax
from torch_graphs import block, compare, heterogeneous, homogeneous, on_torch, results

from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too

BINARY = ["add", "sub", "mul", "div"]
REDUCE = ["sum", "mean", "max", "min"]
IDTYPES = [torch.int32, torch.int64]


def values(rows, *shape):
    """Positive numbers, which can be divided by, without ties."""
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(rows)) + 0.5


# Feature shapes of sources and edges: equal, weights per edge and per head, scalars, broadcast on both sides.
SHAPES = {
    "equal": ((6,), (6,)),
    "weight": ((6,), (1,)),
    "heads": ((3, 4), (3, 1)),
    "deep heads": ((2, 3, 4), (2, 3, 1)),
    "scalars": ((), ()),
    "scalar weight": ((6,), ()),
    "broadcast": ((3, 1), (1, 4)),
    "fewer": ((3, 4), (4,)),
}


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("shapes", ["equal", "weight", "heads", "scalars", "broadcast"])
def test_messages_of_sources_and_edges(op, reduce, shapes, idtype):
    g = block(idtype)
    u, e = SHAPES[shapes]
    if reduce in ("max", "min") and op in ("mul", "div") and shapes == "broadcast":
        pytest.skip("DGL's own backward pass cannot broadcast both operands of a maximum")
    compare(getattr(dgl.ops, f"u_{op}_e_{reduce}"), g, values(60, *u), values(200, *e))


@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes_broadcast_as_in_dgl(shapes):
    u, e = SHAPES[shapes]
    compare(dgl.ops.u_mul_e_sum, block(), values(60, *u), values(200, *e))


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("make", [block, homogeneous])
def test_messages_of_one_operand(make, reduce):
    g = make()
    for shape in ((), (5,), (2, 3)):
        compare(getattr(dgl.ops, f"copy_u_{reduce}"), g, values(g.num_src_nodes(), *shape))
        compare(getattr(dgl.ops, f"copy_e_{reduce}"), g, values(g.num_edges(), *shape))


@pytest.mark.parametrize("op", [*BINARY, "dot"])
@pytest.mark.parametrize("sides", ["u_v", "v_u", "u_e", "e_u", "v_e", "e_v"])
def test_features_of_edges(op, sides):
    g = block()
    rows = {"u": 60, "v": 20, "e": 200}
    left, right = (rows[side] for side in sides.split("_"))
    function = getattr(dgl.ops, sides.replace("_", f"_{op}_"))
    for first, second in (((6,), (6,)), ((3, 4), (3, 4)), ((3, 4), (1, 4))):
        if op == "dot" and first != second and "e" not in sides:
            continue  # DGL's backward pass fails
        compare(function, g, values(left, *first), values(right, *second))


def test_copies_of_ends():
    compare(dgl.ops.copy_u, block(), values(60, 2, 3))
    compare(dgl.ops.copy_v, block(), values(20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_of_equal_maxima_go_where_dgl_sends_them(reduce, dtype):
    g = block()
    ties = torch.randint(0, 3, (60, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    numbers = [torch.rand(n, 4, generator=generator).to(dtype) for n in (60, 200)]  # equal once rounded to bfloat16
    compare(getattr(dgl.ops, f"copy_u_{reduce}"), g, ties)
    compare(getattr(dgl.ops, f"copy_e_{reduce}"), g, ties.repeat(4, 1)[:200])
    compare(getattr(dgl.ops, f"u_add_e_{reduce}"), g, ties, ties.repeat(4, 1)[:200])
    compare(getattr(dgl.ops, f"u_mul_e_{reduce}"), g, ties, ties.repeat(4, 1)[:200, :1])
    compare(getattr(dgl.ops, f"u_add_e_{reduce}"), g, *numbers)


def typed(g):
    return [values(30, 3), values(12, 3)], [values(g.num_edges(t), 3) for t in g.canonical_etypes]


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("what", ["copy_u", "copy_e", "u_mul_e"])
def test_messages_of_all_edge_types_at_once(what, reduce):
    g = heterogeneous()
    nodes, edges = typed(g)
    if reduce != "sum" and what == "u_mul_e":
        pytest.skip("DGL has no backward pass for it")

    def forward(g, *tensors):
        with g.local_scope():
            for kind, x in zip(["user", "film"], tensors[:2], strict=True):
                g.nodes[kind].data["x"] = x
            for kind, x in zip(g.canonical_etypes, tensors[2:], strict=True):
                g.edges[kind].data["w"] = x
            fields = {"copy_u": ("x",), "copy_e": ("w",), "u_mul_e": ("x", "w")}[what]
            g.update_all(getattr(fn, what)(*fields, "m"), getattr(fn, reduce)("m", "y"))
            return [g.nodes[kind].data["y"] for kind in ("user", "film")]

    compare(forward, g, *nodes, *edges)


def test_features_of_edges_of_all_types_at_once():
    g = heterogeneous()
    nodes, edges = typed(g)

    def forward(g, *tensors):
        with g.local_scope():
            for kind, x in zip(["user", "film"], tensors[:2], strict=True):
                g.nodes[kind].data["x"] = x
            g.apply_edges(fn.u_add_v("x", "x", "a"))
            g.apply_edges(fn.copy_u("x", "b"))
            return [g.edges[kind].data[name] for kind in g.canonical_etypes for name in "ab"]

    compare(forward, g, *nodes)
    logits = dict(zip(g.canonical_etypes, edges, strict=True))

    def softmax(g, *scores):
        return edge_softmax(g, dict(zip(logits, scores, strict=True)))

    compare(softmax, g, *edges)


def test_user_defined_functions():
    def forward(g, x):
        with g.local_scope():
            g.srcdata["h"] = x
            g.apply_edges(lambda edges: {"s": edges.src["h"] * 2})
            g.update_all(fn.copy_e("s", "m"), lambda nodes: {"y": nodes.mailbox["m"].prod(1)})
            g.update_all(
                lambda edges: {"m": edges.src["h"]}, fn.max("m", "z"), lambda nodes: {"z": nodes.data["z"] + 1}
            )
            return g.dstdata["y"], g.dstdata["z"]

    compare(forward, block(), values(60, 3))


def test_parts_of_a_graph_get_messages():
    def forward(g, x):
        with g.local_scope():
            g.ndata["h"] = x
            g.pull([1, 7], fn.copy_u("h", "m"), fn.sum("m", "h"))
            g.push([3], fn.copy_u("h", "m"), fn.max("m", "h"))
            g.send_and_recv([0, 4], fn.copy_u("h", "m"), fn.sum("m", "h"))
            return g.ndata["h"]

    g, x = homogeneous(), values(40, 2)
    with graphs_of_cpu_too():
        found = forward(on_torch(g), x)
    torch.testing.assert_close(found, forward(g, x))


@pytest.mark.parametrize("num_edges", [0, 1])
def test_graphs_of_few_edges(num_edges):
    g = dgl.create_block((torch.arange(num_edges), torch.arange(num_edges)), 3, 2)
    for reduce in REDUCE:
        compare(getattr(dgl.ops, f"copy_u_{reduce}"), g, values(3, 4))
    compare(dgl.ops.u_add_e_mean, g, values(3, 4), values(num_edges, 1))
    compare(dgl.ops.u_mul_e_sum, g, values(3, 4), values(num_edges, 1))
    compare(dgl.ops.u_dot_v, g, values(3, 4), values(2, 4))
    compare(edge_softmax, g, values(num_edges, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_accumulated_in_float32(dtype):
    g = dgl.create_block((torch.arange(4096), torch.zeros(4096, dtype=torch.int64)), 4096, 1)
    x = torch.full((4096, 2), 1.0, dtype=dtype)
    out = dgl.ops.copy_u_sum(on_torch(g), x)
    assert out.dtype == dtype
    assert out.tolist() == [[4096.0, 4096.0]]  # one by one, float16 ends at 2048
    weighted = dgl.ops.u_mul_e_sum(on_torch(g), x, x[:, :1])
    assert weighted.tolist() == [[4096.0, 4096.0]]


def test_double_precision():
    compare(dgl.ops.u_mul_e_sum, block(), values(60, 3).double(), values(200, 1).double(), rtol=1e-12, atol=1e-12)


def test_autocast_casts_features():
    t = on_torch(block())
    x, w = values(60, 4).requires_grad_(), values(200, 1).requires_grad_()
    with graphs_of_cpu_too(), torch.autocast("cpu", torch.bfloat16):
        out = dgl.ops.u_mul_e_sum(t, x, w.bfloat16())  # of two types, as a linear layer beside a parameter gives
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32
    expected = dgl.ops.u_mul_e_sum(block(), x, w)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


def test_wrong_features_are_refused():
    t = on_torch(block())
    with pytest.raises(dgl.DGLError, match=r"nodes and edges to have one dtype, got torch.float32 and"):
        dgl.ops.u_mul_e_sum(t, values(60, 3), values(200, 3).double())
    with pytest.raises(dgl.DGLError, match=r"whose shapes broadcast, got \(3,\) and \(4,\)"):
        dgl.ops.u_mul_e_sum(t, values(60, 3), values(200, 4))
    with pytest.raises(dgl.DGLError, match="got one with 3"):
        sparse._gspmm(on_torch(heterogeneous())._graph, "copy_lhs", "sum", values(30, 3), None)


# Operators on tensors alone, which a device chooses


@pytest.fixture
def no_kernels(monkeypatch):
    """DGL's C++ kernels on tensors raise, within ``graphs_of_cpu_too``."""
    from dgl import _sparse_ops

    from manyhop_dgl_cuda import dispatch

    for name in vars(_sparse_ops):
        if name.startswith("_CAPI_DGLKernel"):
            real = getattr(_sparse_ops, name)

            def refuse(*args, real=real, name=name):
                assert not dispatch.on_torch(torch.device("cpu")), f"DGL's C++ was called: {name}"
                return real(*args)

            monkeypatch.setattr(_sparse_ops, name, refuse)


def both(function, *tensors):
    """Assert that a function of tensors gives the same with DGL's C++ and torch, gradients included."""
    expected = results(lambda _, *args: function(*args), None, tensors)
    with graphs_of_cpu_too():
        found = results(lambda _, *args: function(*args), None, tensors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segments_are_reduced(reduce):
    lengths = torch.tensor([3, 0, 5, 1, 0])
    ties = torch.randint(0, 3, (9, 4)).float()
    both(lambda x: dgl.ops.segment_reduce(lengths, x, reduce), values(9, 2, 3))
    both(lambda x: dgl.ops.segment_reduce(lengths, x, reduce), ties)


@pytest.mark.usefixtures("no_kernels")
def test_rows_are_added():
    both(lambda x: sparse.scatter_add(x, torch.tensor([0, 4, 4, 1]), 6), values(4, 3).detach())


@pytest.mark.usefixtures("no_kernels")
def test_segments_and_rows_are_multiplied_with_their_matrices():
    lengths, which = torch.tensor([4, 0, 5]), torch.tensor([2, 0, 0, 2, 1, 2, 0, 1, 1])
    with graphs_of_cpu_too():
        for function, reference in (
            (lambda a, b: sparse.SEGMENTMM.apply(a, b, lengths), lambda a, b: segments(a, b, lengths)),
            (lambda a, b: sparse.GATHERMM.apply(a, b, None, which), lambda a, b: torch.bmm(a[:, None], b[which])[:, 0]),
        ):
            found = results(lambda _, *args, f=function: f(*args), None, (values(9, 3), values(3, 3, 2)))
            expected = results(lambda _, *args, f=reference: f(*args), None, (values(9, 3), values(3, 3, 2)))
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b)


def segments(a, b, lengths):
    return torch.cat([part @ matrix for part, matrix in zip(a.split(lengths.tolist()), b, strict=True)])


def test_readouts_of_batched_graphs():
    graphs = dgl.batch([homogeneous(num_nodes=n, num_edges=20) for n in (5, 7)])

    def forward(g, x):
        with g.local_scope():
            g.ndata["h"] = x
            return dgl.sum_nodes(g, "h"), dgl.max_nodes(g, "h"), dgl.softmax_nodes(g, "h")

    compare(forward, graphs, values(12, 3))
