"""PyG's models of random walks have exactly the distributions of their arguments."""

from collections import Counter

import pytest
import torch
import torch_geometric.nn
from chi_square import p_value

import manyhop_pyg

EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 0], [1, 2, 0, 2, 0, 4, 3]])  # 4: no edge out
OUT = {u: [int(v) for s, v in EDGES.t() if s == u] for u in range(5)}
WRITES, CITES, BY = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")


def metapath(source, *args):
    edges = {
        WRITES: torch.tensor([[0, 0, 0, 1, 2], [0, 1, 1, 2, 2]]),  # author 3 writes nothing
        CITES: torch.tensor([[0, 0, 1, 1, 2], [1, 2, 0, 3, 1]]),  # paper 3 cites nothing
        BY: torch.tensor([[0, 1, 2], [0, 0, 1]]),
    }
    num_nodes = {"author": 4, "paper": 4}
    return source.MetaPath2Vec(edges, 4, [WRITES, CITES, BY], *args, num_nodes_dict=num_nodes)


def test_the_bias_is_that_of_the_attributes():
    """Exact probabilities of the second step."""
    model = manyhop_pyg.Node2Vec(EDGES, 4, 3, 3)
    for p, q in [(1.0, 1.0), (0.25, 4.0)]:
        model.p, model.q = p, q
        torch.manual_seed(0)
        walks = [tuple(walk) for walk in model.pos_sample(torch.ones(2000, dtype=torch.int64)).tolist()]
        exact = {}
        for u in OUT[1]:
            bias = {v: 1 / p if v == 1 else 1.0 if 1 in OUT[v] else 1 / q for v in OUT[u]}
            exact |= {(1, u, v): b / sum(bias.values()) / 2 for v, b in bias.items()}
        assert p_value(walks, exact) > 1e-4


@pytest.mark.parametrize("source", [manyhop_pyg, torch_geometric.nn])
def test_metapaths_as_pyg(source):
    """Both have exactly the distribution of a walk, windows and the dummy node included."""
    model = metapath(source, 3, 4)
    torch.manual_seed(3)
    walks = Counter()
    for pos, _ in model.loader(batch_size=1000, sampler=torch.zeros(4000, dtype=torch.int64)):
        walks.update(map(tuple, pos.tolist()))
    dummy = 8  # authors are 0 to 3, papers 4 to 7
    exact = {
        (0, 4, 5, 0): 1 / 6, (0, 4, 6, 1): 1 / 6, (0, 5, 4, 0): 1 / 3, (0, 5, 7, dummy): 1 / 3,
    }  # fmt: skip
    assert p_value(walks, exact) > 1e-4
    assert model._pos_sample(torch.tensor([3])).tolist() == [[3, dummy, dummy, dummy]]
    assert metapath(source, 3, 2, 2)._pos_sample(torch.arange(4)).shape == (24, 2)


def test_negatives_are_uniform():
    """Exactly: every pair of nodes after a start, of all batches, is equally likely."""
    model = manyhop_pyg.Node2Vec(EDGES, 4, 3, 3, num_negative_samples=2)
    starts = torch.zeros(4000, dtype=torch.int64)
    windows = [neg for _, neg in model.loader(batch_size=100, sampler=starts, seed=1)]
    exact = {(0, u, v): 1 / 25 for u in range(5) for v in range(5)}
    assert p_value(map(tuple, torch.cat(windows).tolist()), exact) > 1e-4
    typed = metapath(manyhop_pyg, 2, 3)
    windows = [neg for _, neg in typed.loader(batch_size=100, sampler=starts, seed=1)]
    exact = {(0, u, v): 1 / 16 for u in range(4, 8) for v in range(4, 8)}
    assert p_value(map(tuple, torch.cat(windows).tolist()), exact) > 1e-4
