"""GraphBolt's loader on a GPU: the minibatches are those of the CPU, wherever graph and features lie."""

import pytest
import torch
from gb_graphs import ETYPES, batches, random_graph, random_hetero_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

pytestmark = pytest.mark.gpu

ALL = torch.tensor([-1, -1, -1])


def leaves(value):
    """All tensors of a minibatch, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for name in sorted(value, key=str) for leaf in leaves(value[name])]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, gb.MiniBatch | gb.SampledSubgraphImpl | gb.CSCFormatBase):
        return leaves({name: part for name, part in vars(value).items() if name != "key"})
    return []


def check_equal(on_gpu, on_cpu):
    assert on_gpu.key == on_cpu.key
    ours, expected = leaves(on_gpu), leaves(on_cpu)
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        assert a.is_cuda
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b)


def features(device, num=2000):
    tensor = torch.arange(num * 3.0).view(num, 3)
    return gb.BasicFeatureStore(
        {
            ("node", None, "feat"): gb.TorchBasedFeature(tensor.to(device)),
            ("edge", None, "weight"): gb.TorchBasedFeature(torch.arange(30000.0).view(-1, 1)),
        }
    )


def chain(graph, store, device=None, end=None, stage="sample_neighbor", fanouts=(5, 4), links=False, size=16, **kwargs):
    """A chain whose minibatches are moved before they are sampled, or at the end."""
    if links:
        pipe = batches("seeds", graph.edges[:, :300].T.contiguous(), batch_size=size, shuffle=True, seed=3)
    else:
        pipe = batches(("seeds", "labels"), (torch.arange(400),) * 2, batch_size=size, shuffle=True, seed=3)
    if device is not None:
        pipe = pipe.copy_to(device)
    if links:
        pipe = pipe.sample_uniform_negative(graph, 2)
    pipe = getattr(pipe, stage)(graph, list(fanouts), **kwargs)
    if links:
        pipe = pipe.exclude_seed_edges(include_reverse_edges=True)
    pipe = pipe.fetch_feature(store, node_feature_keys=["feat"], edge_feature_keys=["weight"])
    return pipe if end is None else pipe.copy_to(end)


@pytest.fixture(scope="module")
def graph():
    graph = random_graph(num_nodes=2000, num_edges=30000, weight=torch.rand(30000), mask=torch.arange(30000) % 2 == 0)
    return graph


@pytest.fixture(scope="module")
def on_gpu(graph):
    moved = graph.to("cuda")
    moved.edges = graph.edges
    return moved


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "options",
    [{}, {"links": True}, {"replace": True}, {"prob_name": "weight"}, {"prob_name": "mask", "fanouts": (-1, 2)}],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
def test_minibatches_are_those_of_the_cpu(graph, on_gpu, num_workers, where, options):
    loader = gb.DataLoader(chain(on_gpu, features(where), "cuda", **options), num_workers=num_workers)
    expected = chain(graph, features("cpu"), **options)
    for _ in range(2):
        both = list(zip(loader, expected, strict=True))
        assert len(both) >= 18
        for ours, theirs in both:
            check_equal(ours, theirs)


def test_layer_neighbours(graph, on_gpu):
    options = {"stage": "sample_layer_neighbor"}
    theirs = chain(graph, features("cpu"), **options)
    for ours, same in zip(gb.DataLoader(chain(on_gpu, features("cuda"), "cuda", **options)), theirs, strict=True):
        check_equal(ours, same)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_moved_at_the_end(graph, num_workers):
    loader = gb.DataLoader(chain(graph, features("cpu"), end="cuda"), num_workers=num_workers)
    for ours, theirs in zip(loader, chain(graph, features("cpu")), strict=True):
        check_equal(ours, theirs)


def test_a_graph_in_pinned_memory(graph):
    pinned = random_graph(num_nodes=2000, num_edges=30000).to("pinned")
    loader = gb.DataLoader(chain(pinned, features("cuda"), "cuda"), num_workers=2)
    for ours, theirs in zip(loader, chain(graph, features("cpu")), strict=True):
        check_equal(ours, theirs)


def test_items_on_the_gpu(graph, on_gpu):
    pipe = batches("seeds", torch.arange(400, device="cuda"), batch_size=16, shuffle=True, seed=3).sample_neighbor(
        on_gpu, [3]
    )
    plain = batches("seeds", torch.arange(400), batch_size=16, shuffle=True, seed=3).sample_neighbor(graph, [3])
    for ours, theirs in zip(gb.DataLoader(pipe, num_workers=2), plain, strict=True):
        check_equal(ours, theirs)


@pytest.mark.parametrize("fanouts", [[ALL, torch.tensor([2, 3, 1])], [4, 3]], ids=["by type", "together"])
def test_hetero(fanouts):
    graph = random_hetero_graph(300, 200, 3000)
    moved = graph.to("cuda")
    store = gb.BasicFeatureStore(
        {
            ("node", "user", "x"): gb.TorchBasedFeature(torch.rand(300, 4)),
            ("node", "item", "x"): gb.TorchBasedFeature(torch.rand(200, 2)),
        }
    )
    items = gb.HeteroItemSet({name: gb.ItemSet(torch.arange(60), names="seeds") for name in ("user", "item")})

    def pipe(graph, device):
        start = gb.ItemSampler(items, batch_size=16, shuffle=True, seed=3).copy_to(device)
        return start.sample_neighbor(graph, fanouts).fetch_feature(store, {"user": ["x"], "item": ["x"]})

    count = 0
    for ours, theirs in zip(gb.DataLoader(pipe(moved, "cuda"), num_workers=2), pipe(graph, "cpu"), strict=True):
        check_equal(ours, theirs)
        count += 1
    assert count == 8
    assert set(ETYPES) == set(ours.sampled_subgraphs[0].sampled_csc)


@pytest.mark.parametrize("placement", ["auto", "cuda-cuda", "pinned-cuda"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("links", [False, True])
def test_where_topology_and_features_reside(graph, placement, num_workers, links):
    made = gb.DataLoader(
        chain(graph, features("cpu"), "cuda", links=links), num_workers=num_workers, placement=placement
    )
    for ours, theirs in zip(made, chain(graph, features("cpu"), links=links), strict=True):
        check_equal(ours, theirs)
    assert made.stats().gathered_bytes > 0


def test_a_cached_feature_in_a_loader(graph):
    rows, store = torch.arange(6000.0).view(2000, 3), features("cpu")
    cached = store["node", None, "feat"] = gb.GPUCachedFeature(gb.TorchBasedFeature(rows), 300)
    loader = gb.DataLoader(chain(graph, store, "cuda"))
    for _ in range(2):
        for minibatch in loader:
            assert torch.equal(minibatch.node_features["feat"].cpu(), rows[minibatch.input_nodes.cpu()])
    assert 0 < cached.miss_rate < 1


def test_memory_is_not_used_again_too_early(graph, on_gpu):
    """The caller is slow to read what it was given, while others are made."""
    x = torch.rand(4000, 4000, device="cuda")
    sums, kept = [], []
    for i, minibatch in enumerate(gb.DataLoader(chain(on_gpu, features("cuda"), "cuda", size=64), num_workers=3)):
        for _ in range(3):
            x = (x @ x).softmax(dim=1)
        sums.append(minibatch.node_features["feat"].double().sum() + minibatch.input_nodes.sum() + 0 * x[0, 0])
        if i % 2:
            kept.append(minibatch)
        del minibatch
    expected = [
        m.node_features["feat"].double().sum() + m.input_nodes.sum() for m in chain(graph, features("cpu"), size=64)
    ]
    assert torch.equal(torch.stack(sums).cpu(), torch.stack(expected))


def test_errors(on_gpu):
    items = torch.arange(100)
    items[40] = 2000
    pipe = batches("seeds", items, batch_size=8).copy_to("cuda").sample_neighbor(on_gpu, [2])
    with pytest.raises(InputError, match="batch 5 of epoch 0"):
        list(gb.DataLoader(pipe, num_workers=2))
    few = features("cuda", num=100)
    with pytest.raises(InputError, match=r"in \[0, 100\)"):
        list(gb.DataLoader(chain(on_gpu, few, "cuda"), num_workers=1))
