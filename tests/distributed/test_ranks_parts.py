"""Batches of seeds of one slice of the nodes go to the rank that holds it: loaders of all adapters."""

import pytest
import torch
from rank_loaders import binary, digest, graph, heterogeneous, homogeneous, padding, several_types, walks
from torch_geometric.sampler import BaseSampler

import manyhop
import manyhop_dgl
from manyhop.errors import InputError, RankError, StateError
from manyhop_pyg import NeighborLoader, NodeLoader

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

import manyhop_dgl.graphbolt as gb  # noqa: E402

PARTS = 4
NUM_NODES = 61
_OPTIONS = {"batch_size": 3, "shuffle": True}


def dgl_graph():
    return dgl.graph(tuple(graph().edge_index), num_nodes=NUM_NODES)


def dgl_loader(**kwargs):
    sampler = manyhop_dgl.NeighborSampler([2])
    return manyhop_dgl.DataLoader(
        dgl_graph(), torch.arange(NUM_NODES), sampler, use_ddp=True, seed_parts=PARTS, seed=5, **_OPTIONS, **kwargs
    )


def dgl_edge_loader():
    sampler = manyhop_dgl.as_edge_prediction_sampler(manyhop_dgl.NeighborSampler([2]))
    return manyhop_dgl.DataLoader(
        dgl_graph(), torch.arange(300), sampler, use_ddp=True, seed_parts=PARTS, seed=5, batch_size=10, output="tensors"
    )


def item_sampler(items=None, **kwargs):
    items = gb.ItemSet(torch.arange(NUM_NODES), names="seeds") if items is None else items
    return gb.DistributedItemSampler(
        items, seed=5, **{"seed_parts": PARTS, "num_nodes": NUM_NODES, **_OPTIONS, **kwargs}
    )


def seeds_of_all():
    """Rank, and per adapter the nodes of each batch; the state of PyG's loader after each round; wrong states."""
    rank = manyhop.init().rank
    pyg, states = homogeneous(distributed=True, seed=5, seed_parts=PARTS, num_workers=1), []
    nodes = []
    for batch in pyg:
        nodes.append((digest(batch), padding(batch), batch.input_id.tolist()))
        states.append(pyg.state_dict())
    src = graph().edge_index[0]
    links = gb.HeteroItemSet({"a:r:a": gb.ItemSet((graph().edge_index.t(), src), names=("seeds", "labels"))})
    seen = {
        "pyg": [ids for _, _, ids in nodes],
        "links": [
            graph().edge_index[0, batch.input_id].tolist() for batch in binary(distributed=True, seed_parts=PARTS)
        ],
        "dgl": [output.tolist() for _, output, _ in dgl_loader()],
        "edges": [src[batch.ids[("_N", "_E", "_N")]].tolist() for batch in dgl_edge_loader()],
        "items": [batch.seeds.tolist() for batch in item_sampler()],
        "pairs": [batch.seeds["a:r:a"][:, 0].tolist() for batch in item_sampler(links, num_nodes={"a": NUM_NODES})],
    }
    try:
        homogeneous(distributed=True, seed=5, seed_parts=2 + rank)
    except RankError as error:
        return seen, [node[:2] for node in nodes], states, str(error)


def rest(state):
    loader = homogeneous(distributed=True, seed=0, seed_parts=PARTS)
    loader.load_state_dict(state)
    return [digest(batch) for batch in loader]


def test_ranks_get_the_batches_of_their_slices(launcher):
    ranks = launcher.run(seeds_of_all)
    for name in ranks[0][0]:
        of_ranks = [seen[name] for seen, *_ in ranks]
        assert abs(len(of_ranks[0]) - len(of_ranks[1])) <= (name in ("items", "pairs"))
        local = [nodes for rank, batches in enumerate(of_ranks) for nodes in batches if at_home(nodes, rank)]
        every = sum(map(len, of_ranks))
        least = 0.8 * every if name in ("edges", "pairs") else every - PARTS  # fewer edges begin in the last part
        assert len(local) >= least, name
    for name, count in (("items", 61), ("pairs", 300)):
        assert sum(len(nodes) for seen, *_ in ranks for nodes in seen[name]) == count
    one = list(homogeneous(distributed=True, seed=5, seed_parts=PARTS))
    both = [batch for _, batches, *_ in ranks for batch in batches]
    assert sorted(d for d, is_padding in both if not is_padding) == sorted(map(digest, one)), "bit for bit"
    _, batches, states, _ = zip(*ranks, strict=True)
    done = [d for of_rank in batches for d, _ in of_rank[:2]]
    assert states[0] == states[1]
    assert sorted(done + rest(states[0][1])) == sorted(map(digest, one)), "another number of ranks goes on"
    for *_, message in ranks:
        assert "expected the same seed_parts on all ranks, got 2 on rank 0; 3 on rank 1" in message
    for other in (homogeneous(distributed=True, seed=5), homogeneous(distributed=True, seed=5, seed_parts=2)):
        with pytest.raises(StateError, match="seed_parts"):
            other.load_state_dict(states[0][1])


def at_home(nodes, rank):
    """Whether the nodes are of the slice of a rank of two."""
    return all(NUM_NODES * rank // 2 <= node < NUM_NODES * (rank + 1) // 2 for node in nodes)


@pytest.mark.parametrize("make", [heterogeneous, several_types])
def test_typed_seeds(make):
    loader = make(distributed=True, seed=5, seed_parts=3)
    parts = loader._plan().parts
    for i, batch in enumerate(make(distributed=True, seed=5, seed_parts=3)):
        (home,) = parts.homes(i, i + 1)
        for name, count in (("paper", 61), ("author", 30)):
            if home >= 0 and "batch_size" in batch[name]:
                nodes = batch[name].n_id[: batch[name].batch_size]
                assert all(count * home // 3 <= node < count * (home + 1) // 3 for node in nodes.tolist())


class Own(BaseSampler):
    def sample_from_nodes(self, index):
        raise AssertionError

    sample_from_edges = sample_from_nodes


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: homogeneous(seed_parts=2), "only with distributed=True"),
        (lambda: homogeneous(distributed=True, seed_parts=0), "seed_parts to be an integer of at least 1"),
        (lambda: NodeLoader(graph(), Own(), distributed=True, seed_parts=2), "one of manyhop's samplers"),
        (lambda: walks(distributed=True, seed_parts=2), "no seed_parts"),
        (lambda: NeighborLoader(graph(), [2], distributed=True, seed_parts=2, batch_size=0), "batch_size"),
        (lambda: manyhop_dgl.DataLoader(dgl_graph(), [0], manyhop_dgl.NeighborSampler([2]), seed_parts=2), "use_ddp"),
        (
            lambda: manyhop_dgl.DataLoader(
                dgl_graph(),
                [0],
                dgl.dataloading.ClusterGCNSampler.__new__(dgl.dataloading.ClusterGCNSampler),
                use_ddp=True,
                seed_parts=2,
            ),
            "manyhop's samplers",
        ),
    ],
)
def test_arguments_that_do_not_go_together(make, words):
    with pytest.raises((InputError, ValueError), match=words):
        make()
