"""Ranks that share the batches of Node2Vec's and MetaPath2Vec's loaders."""

import pytest
import torch
import torch.distributed as dist

from manyhop.errors import RankError
from manyhop_pyg import MetaPath2Vec, Node2Vec

EDGES = torch.randint(0, 22, (2, 150), generator=torch.Generator().manual_seed(1))
TO = ("a", "to", "a")


def node2vec(walks_per_node=2):
    return Node2Vec(EDGES, 4, 6, 3, walks_per_node=walks_per_node, q=0.5, num_nodes=22)


def metapath2vec():
    return MetaPath2Vec({TO: EDGES}, 4, [TO], 5, 3, num_nodes_dict={"a": 22})


MAKES = {"node2vec": node2vec, "metapath2vec": metapath2vec}


def listed(loader, epochs=2):
    return [[(pos.tolist(), neg.tolist()) for pos, neg in loader] for _ in range(epochs)]


def share(uneven, folder):
    """Per model: two epochs, and the rest of one after a restart; in a process group, as scripts under DDP have."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=share_rank(), world_size=2)
    out = {}
    for name, make in MAKES.items():
        loader = make().loader(batch_size=5, shuffle=True, seed=5, distributed=True, uneven=uneven, num_workers=2)
        found, length = listed(loader), len(loader)
        next(iter(loader))
        again = make().loader(batch_size=5, shuffle=True, seed=1, distributed=True, uneven=uneven)
        again.load_state_dict(loader.state_dict())
        out[name] = found, length, listed(again, 1)[0]
    dist.destroy_process_group()
    return out


def share_rank():
    from manyhop.ranks.world import current_rank

    return current_rank()


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_they_share_an_epoch(launcher, tmp_path, uneven):
    ranks = launcher.run(share, uneven, str(tmp_path), world_size=2)
    for name, make in MAKES.items():
        expected = listed(make().loader(batch_size=5, shuffle=True, seed=5), 3)
        rounds = 3 if uneven == "pad" else 2
        for rank, found in enumerate(ranks):
            epochs, length, rest = found[name]
            assert length == rounds
            turns = [(2 * i + rank) % 5 for i in range(rounds)]
            assert epochs == [[epoch[turn] for turn in turns] for epoch in expected[:2]]
            assert rest == [expected[2][turn] for turn in turns[1:]]


def share_others():
    from manyhop.ranks.world import current_rank

    try:
        node2vec(walks_per_node=1 + current_rank()).loader(batch_size=5, distributed=True)
    except RankError as error:
        return str(error)
    return None


def test_other_models_are_refused(launcher):
    for message in launcher.run(share_others, world_size=2):
        assert "walks_per_node" in message
