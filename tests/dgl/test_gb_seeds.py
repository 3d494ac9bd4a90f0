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
    loader = gb.DataLoader(items(shuffle=True).sample_neighbor(GRAPH, [2]))
    gb.seed(1)
    epochs = [list(loader) for _ in range(2)]
    gb.seed(2)
    again = [loader.replay(1, number) for number in range(8)]
    assert [repr(batch) for batch in again] == [repr(batch) for batch in epochs[1]]
    assert [batch.key for batch in again] == [batch.key for batch in epochs[1]]
