"""DGL's graphs, blocks and layers on CUDA with DGL's build for CPUs: the same as on the CPU."""

import pickle

import dgl
import dgl.nn.pytorch as dnn
import pytest
import torch
from torch_graphs import block, heterogeneous, homogeneous, minibatches, results

import manyhop_dgl
from manyhop.errors import MissingExtraError
from manyhop_dgl_cuda.index import TorchGraphIndex

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _cuda():
    if dgl.ndarray.gpu(0).exist:
        pytest.skip("this build of DGL has CUDA of its own")


def on_both(function, g, *tensors, module=None):
    """Assert that a function gives the same on the CPU and on CUDA, gradients included."""
    expected = results(function, g, tensors, module)
    there = g.to("cuda")
    assert type(there._graph) is TorchGraphIndex
    module = None if module is None else module.to("cuda")
    found = results(function, there, [t.to("cuda") for t in tensors], module)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.is_cuda
            torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4, equal_nan=True)


def rows(n, *shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(n)) + 0.5


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_message_passing(reduce, idtype):
    g = block(idtype)
    ties = torch.randint(0, 3, (60, 4), generator=torch.Generator().manual_seed(0)).float()
    on_both(getattr(dgl.ops, f"copy_u_{reduce}"), g, ties)
    on_both(getattr(dgl.ops, f"copy_e_{reduce}"), g, rows(200, 3))
    for w in ((6,), (1,)):
        on_both(getattr(dgl.ops, f"u_mul_e_{reduce}"), g, rows(60, 6), rows(200, *w))
    on_both(getattr(dgl.ops, f"u_add_e_{reduce}"), g, rows(60, 3, 4), rows(200, 3, 1))


def test_features_of_edges():
    g = block()
    on_both(dgl.ops.u_dot_v, g, rows(60, 3, 4), rows(20, 3, 4))
    on_both(dgl.ops.u_mul_e_sum, g, rows(60, 3, 4), rows(200, 3, 1))
    on_both(dgl.ops.e_sub_v, g, rows(200, 4), rows(20, 4))
    on_both(dnn.edge_softmax, g, 20 * rows(200, 3, 1))
    on_both(dgl.ops.copy_u_sum, dgl.create_block(([], []), 3, 2), rows(3, 4))


def test_results_can_be_changed_in_place():
    g = block()
    on_both(lambda g, x: dgl.ops.copy_u_sum(g, x).add_(1), g, rows(60, 3, 4))
    on_both(lambda g, x: dgl.ops.copy_u_max(g, x).add_(1), g, rows(60, 3, 4))
    on_both(lambda g, x, y: dgl.ops.u_dot_v(g, x, y).add_(1), g, rows(60, 3, 4), rows(20, 3, 4))
    layer = dnn.GATConv(6, 4, 3, allow_zero_in_degree=True, bias=False)
    on_both(lambda layer, g, x: layer(g, x).add_(1), g, rows(60, 6), module=layer)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    g = dgl.create_block((torch.arange(4096), torch.zeros(4096, dtype=torch.int64)), 4096, 1).to("cuda")
    x = torch.ones(4096, 2, dtype=dtype, device="cuda")
    assert dgl.ops.copy_u_sum(g, x).tolist() == [[4096.0, 4096.0]]
    with torch.autocast("cuda", dtype):
        out = dgl.ops.u_mul_e_sum(g, x.float(), x[:, :1])
    assert out.dtype == dtype
    assert out.tolist() == [[4096.0, 4096.0]]


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda: dnn.SAGEConv(6, 4, "mean"), lambda m, g, x: m(g, x)),
        (lambda: dnn.SAGEConv(6, 4, "pool"), lambda m, g, x: m(g, x)),
        (lambda: dnn.GraphConv(6, 4, allow_zero_in_degree=True), lambda m, g, x: m(g, x)),
        (lambda: dnn.GATConv(6, 4, 3, allow_zero_in_degree=True), lambda m, g, x: m(g, x)),
        (lambda: dnn.GATv2Conv(6, 4, 3, allow_zero_in_degree=True), lambda m, g, x: m(g, x)),
        (lambda: dnn.RelGraphConv(6, 4, 3), lambda m, g, x: m(g, x, torch.arange(300, device=x.device) % 3)),
        (lambda: dnn.RelGraphConv(6, 12, 3), lambda m, g, x: m(g, x, torch.arange(300, device=x.device) % 3)),
        (lambda: dnn.GINConv(torch.nn.Linear(6, 4), "max"), lambda m, g, x: m(g, x)),
    ],
)
def test_layers(make, call):
    torch.manual_seed(0)
    on_both(call, homogeneous(), rows(40, 6), module=make())


def test_user_defined_functions():
    def forward(g, x):
        with g.local_scope():
            g.srcdata["h"] = x
            g.update_all(lambda edges: {"m": edges.src["h"] * 2}, lambda nodes: {"y": nodes.mailbox["m"].prod(1)})
            return g.dstdata["y"]

    on_both(forward, block(), rows(60, 3))


def test_structure():
    g = heterogeneous()
    g.nodes["user"].data["x"] = rows(30, 2)
    there = g.to("cuda")
    part = {"user": torch.tensor([5, 0, 9]), "film": torch.tensor([7, 1])}
    on_gpu = {kind: ids.cuda() for kind, ids in part.items()}
    seeds = {"user": torch.tensor([4, 9])}
    for found, expected in (
        (dgl.node_subgraph(there, on_gpu), dgl.node_subgraph(g, part)),
        (dgl.reverse(there), dgl.reverse(g)),
        (
            dgl.to_block(dgl.in_subgraph(there, {"user": seeds["user"].cuda()}), {"user": seeds["user"].cuda()}),
            dgl.to_block(dgl.in_subgraph(g, seeds), seeds),
        ),
        (there.to("cpu"), g),
    ):
        for kind in expected.canonical_etypes:
            for a, b in zip(found.edges(etype=kind), expected.edges(etype=kind), strict=True):
                assert a.tolist() == b.tolist()
    assert type(there.to("cpu")._graph) is dgl.heterograph_index.HeteroGraphIndex
    assert there.nodes["user"].data["x"].is_cuda
    with pytest.raises(MissingExtraError, match=r"dgl.sample_neighbors needs DGL's C\+\+.*cuda"):
        dgl.sampling.sample_neighbors(there, {"user": on_gpu["user"]}, 2)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_queries(idtype):
    g = homogeneous(idtype)
    there, edges = g.to("cuda"), torch.tensor([9, 0, 4], dtype=idtype)
    src, dst = g.find_edges(edges)
    answers = {
        "has_edges_between": lambda g, *ends: g.has_edges_between(*ends),
        "edge_ids": lambda g, *ends: g.edge_ids(*ends),
        "edge_subgraph": lambda g, *_: torch.stack(g.edge_subgraph(edges.to(g.device)).edges()),
        "subgraph": lambda g, src, _: torch.stack(g.subgraph(src).edges()),
        "degrees": lambda g, *_: torch.stack([g.in_degrees(), g.out_degrees()]),
        "adj": lambda g, *_: g.adj().to_dense(),
    }
    for name, answer in answers.items():
        found = answer(there, src.cuda(), dst.cuda())
        assert found.is_cuda, name
        assert torch.equal(found.cpu(), answer(g, src, dst)), name


@pytest.mark.parametrize(
    "make",
    [
        lambda: dnn.SAGEConv(6, 4, "mean"),
        lambda: dnn.GATConv(6, 4, 3, allow_zero_in_degree=True),
        lambda: dnn.GraphConv(6, 4, allow_zero_in_degree=True),
    ],
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_step_does_not_wait_for_the_gpu(make):
    layer, g, x = make().to("cuda"), block().to("cuda"), rows(60, 6).cuda().requires_grad_()
    layer(g, x).sum().backward()  # compiles
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        layer(g, x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_loader_gives_blocks_on_cuda(num_workers):
    g = homogeneous()
    g.ndata["x"] = rows(40, 6)
    sampler = manyhop_dgl.NeighborSampler([3, 3], prefetch_node_feats=["x"])
    options = {"batch_size": 8, "seed": 0, "num_workers": num_workers}
    expected = list(manyhop_dgl.DataLoader(g, torch.arange(40), sampler, **options))
    found = list(manyhop_dgl.DataLoader(g, torch.arange(40), sampler, device="cuda", **options))
    layer = dnn.SAGEConv(6, 4, "mean")
    on_gpu = dnn.SAGEConv(6, 4, "mean").to("cuda")
    on_gpu.load_state_dict(layer.state_dict())
    for (inputs, _, blocks), (own, _, own_blocks) in zip(found, expected, strict=True):
        assert inputs.tolist() == own.tolist()
        for a, b in zip(blocks, own_blocks, strict=True):
            assert a.device.type == "cuda"
            assert [t.tolist() for t in a.edges()] == [t.tolist() for t in b.edges()]
        out, expected_out = on_gpu(blocks[0], blocks[0].srcdata["x"]), layer(own_blocks[0], own_blocks[0].srcdata["x"])
        torch.testing.assert_close(out.cpu(), expected_out, rtol=1e-4, atol=1e-5)
        out.sum().backward()


def test_data_that_are_not_prefetched():
    g = homogeneous()
    g.ndata["x"], g.edata["w"] = rows(40, 6), rows(300, 2).pin_memory()
    loader = manyhop_dgl.DataLoader(
        g, torch.arange(40), manyhop_dgl.NeighborSampler([3, 3]), device="cuda", batch_size=8
    )
    for inputs, outputs, blocks in loader:
        for found, expected in (
            (blocks[0].srcdata["x"], g.ndata["x"][inputs.cpu()]),
            (blocks[-1].dstdata["x"], g.ndata["x"][outputs.cpu()]),
            (blocks[1].edata["w"], g.edata["w"][blocks[1].edata[dgl.EID].cpu()]),
        ):
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("edges", [False, True])
def test_seeds_on_cuda(edges):
    g = homogeneous()
    sampler = manyhop_dgl.NeighborSampler([3, 3], seed=1)
    if edges:
        sampler = manyhop_dgl.as_edge_prediction_sampler(sampler, negative_sampler=manyhop_dgl.Uniform(1))
    options = {"device": "cuda", "batch_size": 8, "seed": 0}
    made = [
        list(manyhop_dgl.DataLoader(g, ids, sampler, **options)) for ids in (torch.arange(40), torch.arange(40).cuda())
    ]
    for ours, own in zip(*made, strict=True):
        assert ours[0].is_cuda
        assert ours[0].tolist() == own[0].tolist()


def test_negatives_and_reverse_edges_on_cuda():
    g = homogeneous()

    def negatives(device):
        def draw(g, edges):
            return g.find_edges(edges)[0], ((edges * 7 + 3) % 40).to(device)  # as DGL's examples: only one is moved

        return draw

    made = []
    for device in ("cpu", "cuda"):
        sampler = manyhop_dgl.as_edge_prediction_sampler(
            manyhop_dgl.NeighborSampler([3, 3], seed=1),
            exclude="reverse_id",
            reverse_eids=torch.arange(299, -1, -1, device=device),
            negative_sampler=negatives(device),
        )
        loader = manyhop_dgl.DataLoader(
            g, torch.arange(300, device=device), sampler, device="cuda", batch_size=50, seed=0
        )
        made.append(list(loader))
    for ours, own in zip(*made, strict=True):
        assert ours[0].tolist() == own[0].tolist()
        for graph, other in zip((ours[2], *ours[3]), (own[2], *own[3]), strict=True):
            assert [t.tolist() for t in graph.edges()] == [t.tolist() for t in other.edges()]


def test_graphbolt_gives_blocks_on_cuda():
    for minibatch, expected in zip(minibatches("cuda"), minibatches(), strict=True):
        for found, own in zip(minibatch.blocks, expected.blocks, strict=True):
            assert found.device.type == "cuda"
            assert [t.tolist() for t in found.edges()] == [t.tolist() for t in own.edges()]
            sums = dgl.ops.copy_u_sum(found, rows(own.num_src_nodes(), 2).cuda())
            torch.testing.assert_close(sums.cpu(), dgl.ops.copy_u_sum(own, rows(own.num_src_nodes(), 2)))


def test_data_in_pinned_memory():
    g = homogeneous()
    g.ndata["x"] = rows(40, 3).pin_memory()
    there = g.to("cuda")
    part = there.subgraph(torch.tensor([7, 0, 7], device="cuda"), relabel_nodes=True)
    assert torch.equal(part.ndata["x"].cpu(), g.ndata["x"][[7, 0, 7]])
    columns = dgl.frame.Column(g.ndata["x"], index=torch.tensor([4, 2], device="cuda"))
    assert columns.data.is_cuda
    assert torch.equal(columns.data.cpu(), g.ndata["x"][[4, 2]])


def test_graphs_can_be_pickled():
    g = heterogeneous().to("cuda")
    g.nodes["user"].data["x"] = rows(30, 2).cuda()
    again = pickle.loads(pickle.dumps(g))
    assert type(again._graph) is TorchGraphIndex
    assert again.device == g.device
    assert torch.equal(again.nodes["user"].data["x"], g.nodes["user"].data["x"])
    for kind in g.canonical_etypes:
        assert all(map(torch.equal, again.edges(etype=kind), g.edges(etype=kind)))


@pytest.mark.multigpu
def test_another_gpu():
    g, x = block(), rows(60, 4)
    before = torch.cuda.current_device()
    other = torch.device("cuda", 1 - before)
    there = g.to(other)
    assert there.device == other
    assert torch.cuda.current_device() == before
    leaf = x.to(other).requires_grad_()
    for op in (dgl.ops.copy_u_sum, dgl.ops.copy_u_mean, dgl.ops.copy_u_max):
        torch.testing.assert_close(op(there, leaf).cpu(), op(g, x), rtol=1e-4, atol=1e-5)
        op(there, leaf).sum().backward()
    layer = dnn.GATConv(4, 3, 2, allow_zero_in_degree=True)
    expected = layer(g, x)
    torch.testing.assert_close(layer.to(other)(there, leaf).cpu(), expected, rtol=1e-3, atol=1e-4)
    assert torch.cuda.current_device() == before
