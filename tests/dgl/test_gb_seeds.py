"""``gb.seed`` and ``torch.manual_seed`` fix what has no seed of its own, each time they are called."""

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb

GRAPH = random_graph()
SEEDINGS = {"gb.seed": gb.seed, "torch": torch.manual_seed}
seeding = pytest.mark.parametrize("seed", SEEDINGS.values(), ids=SEEDINGS)


def items(**kwargs):
    return batches(("seeds",), (torch.arange(60),), batch_size=8, **kwargs)


@seeding
def test_calls_by_hand(seed):
    def draw():
        return GRAPH.sample_neighbors(torch.arange(20), torch.tensor([2])).sampled_csc.indices.tolist()

    seed(3)
    first, second = draw(), draw()
    assert first != second
    seed(3)
    assert [draw(), draw()] == [first, second]


def test_any_batch_of_an_epoch_can_be_made_again():
    sampler = items(shuffle=True)
    gb.seed(1)
    epochs = [[batch.seeds.tolist() for batch in sampler] for _ in range(3)]
    gb.seed(2)
    assert [sampler.make_batch(1, number).seeds.tolist() for number in range(8)] == epochs[1]
    assert sampler.make_batch(2, 3).key == sampler.key(2, 3)
    assert sampler.key(2, 3)[1:] == (0, 3)
    assert sampler.seed is None
