"""The ids of the edges between pairs of nodes: compared with all pairs of a graph."""

import pickle

import pytest
import torch

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling.lookup import EdgeIds


def edges(n=40, e=300, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, n, (2, e), generator=g)


def lookup(index, **options):
    edge = EdgeInput(row=index[0], col=index[1], **options)
    return EdgeIds(build_graph({HOMOGENEOUS_NODE: 40}, {HOMOGENEOUS_EDGE: edge}).csc[HOMOGENEOUS_EDGE])


@pytest.mark.parametrize("order", ["random", "by source", "by destination", "times"])
def test_all_pairs(order):
    index = edges()
    if order != "random":
        index = index[:, index[int(order == "by destination")].argsort(stable=True)]
    times = {"time": torch.arange(300) * 7 % 50} if order == "times" else {}
    ids = pickle.loads(pickle.dumps(lookup(index, **times)))
    src, dst = torch.cartesian_prod(torch.arange(40), torch.arange(40)).t()
    assert torch.equal(ids.between(src, dst).sort().values, torch.arange(300))
    for s, d in index.t()[:20].tolist():
        found = ids.between(torch.tensor([s]), torch.tensor([d]))
        assert sorted(found.tolist()) == ((index[0] == s) & (index[1] == d)).nonzero().view(-1).tolist()
    assert ids.between(src[:0], dst[:0]).dtype == torch.int64


def test_pairs_without_edges_have_no_ids():
    ids = lookup(torch.tensor([[0, 0, 3], [1, 1, 2]]))
    assert ids.between(torch.tensor([5, 0, 3]), torch.tensor([5, 1, 3])).tolist() == [0, 1]


def test_nodes_out_of_range():
    with pytest.raises(InputError, match="Expected sources in"):
        lookup(edges()).between(torch.tensor([40]), torch.tensor([0]))
