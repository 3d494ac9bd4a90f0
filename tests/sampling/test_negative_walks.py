"""Nodes drawn in place of walks: the CPU and the kernel have those of the contract, which are uniform."""

import pickle

import pytest
import torch

from manyhop.errors import InputError
from manyhop.sampling import BatchKey, WalkRequest
from manyhop.sampling.gpu.walk_sampler import draw_negative_walks
from manyhop.sampling.negatives import NegativeTable, draw_negatives
from manyhop.sampling.random import Use, draw, make_key
from manyhop.sampling.walks import NegativeWalker

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEYS = [BatchKey(3, 1, 4), BatchKey(-1, 2**40, 0)]


def by_the_letter(request, num_nodes):
    """The draws of the contract, in Python's integers."""
    rows = []
    for i, start in enumerate(request.start.tolist()):
        row = [start]
        for step, count in enumerate(num_nodes):
            key = make_key(Use.NEGATIVE_DST, *request.key, *([step] if step else []))
            row.append(int(draw(key, i)) * count >> 64)
        rows.append(row)
    return torch.tensor(rows).view(-1, len(num_nodes) + 1)


@pytest.mark.parametrize("num_nodes", [(), (7,), (1, 2**31 + 5, 2**32 - 1, 12)])
@pytest.mark.parametrize("num_walks", [0, 1, 300])
@pytest.mark.parametrize("key", KEYS)
def test_they_are_those_of_the_contract(key, num_walks, num_nodes):
    request = WalkRequest(key=key, start=torch.arange(num_walks) * 3)
    expected = by_the_letter(request, num_nodes)
    walker = pickle.loads(pickle.dumps(NegativeWalker(num_nodes)))
    assert torch.equal(walker.sample(request), expected)
    on_gpu = expected.to(DEVICE, copy=True)
    on_gpu[:, 1:] = -1
    counts = torch.tensor(num_nodes, dtype=torch.int64, device=DEVICE)
    draw_negative_walks(int(make_key(Use.NEGATIVE_DST, *key)), counts, on_gpu)
    assert torch.equal(on_gpu.cpu(), expected)


def test_a_walk_of_one_step_has_the_negatives_of_seed_edges():
    start = torch.arange(50)
    found = NegativeWalker([9]).sample(WalkRequest(key=KEYS[0], start=start))
    _, expected = draw_negatives(KEYS[0], start.numpy(), NegativeTable(9), 50)
    assert found[:, 1].tolist() == expected.tolist()


@pytest.mark.parametrize(("num_nodes", "message"), [([3, 0], "a node type without"), ([2**32], r"fewer than 2\^32")])
def test_what_cannot_be_drawn(num_nodes, message):
    with pytest.raises(InputError, match=message):
        NegativeWalker(num_nodes)
