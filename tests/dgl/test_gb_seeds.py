"""``gb.seed`` and ``torch.manual_seed`` fix what has no seed of its own, each time they are called."""

import pytest
import torch
import torch.distributed as dist
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


@seeding
def test_seeds_that_ranks_share(seed, tmp_path):
    epochs = []
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for number in (3, 3, 4):
            seed(number)
            pipe = gb.DistributedItemSampler(gb.ItemSet(60, names="seeds"), 8, shuffle=True)
            epochs.append([batch.seeds.tolist() for batch in gb.DataLoader(pipe)])
    finally:
        dist.destroy_process_group()
    assert epochs[0] == epochs[1] != epochs[2]


def test_a_state_brings_its_seed_into_the_chain():
    saved, other = (items(shuffle=True, seed=number) for number in (1, 2))
    loader = gb.DataLoader(other)
    loader.load_state_dict(gb.DataLoader(saved).state_dict())
    assert [batch.key for batch in other] == [batch.key for batch in saved]


def test_loaders_of_one_item_sampler_share_its_epochs():
    sampler = items(shuffle=True, seed=1)
    one, other = gb.DataLoader(sampler), gb.DataLoader(sampler)
    list(one)
    assert other.state_dict()["epoch"] == next(iter(other)).key.epoch == 1


def test_any_batch_of_an_epoch_can_be_made_again():
    loader = gb.DataLoader(items(shuffle=True).sample_neighbor(GRAPH, [2]))
    gb.seed(1)
    epochs = [list(loader) for _ in range(2)]
    gb.seed(2)
    again = [loader.replay(1, number) for number in range(8)]
    assert [repr(batch) for batch in again] == [repr(batch) for batch in epochs[1]]
    assert [batch.key for batch in again] == [batch.key for batch in epochs[1]]
