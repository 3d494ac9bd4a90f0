"""Accelerate's scripts: their ranks share the batches of loaders that it prepares."""

import itertools

import pytest
import torch
from rank_loaders import NUM_SEEDS, digest, graph, homogeneous, one_process, typed_graph

pytest.importorskip("accelerate")


def train(shared):
    from accelerate import Accelerator
    from torch_geometric.nn import GraphSAGE

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"distributed": True} if shared else {}
    model, optimizer, loader = accelerator.prepare(model, optimizer, homogeneous(seed=5, num_workers=1, **options))
    seen, synchronized = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                accelerator.backward(torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]))
                optimizer.step()
                optimizer.zero_grad()
                seen.append((digest(batch), batch.is_padding.tolist()))
                synchronized.append(accelerator.sync_gradients)
    in_loader = accelerator.gradient_state.in_dataloader
    accelerator.end_training()
    return seen, synchronized, in_loader, [p.sum().item() for p in model.parameters()]


@pytest.mark.parametrize("shared", [True, False], ids=["distributed=True", "as Accelerate writes it"])
def test_two_ranks(launcher, shared):
    first, second = launcher.run(train, shared)
    dealt = [batch for pair in zip(first[0], second[0], strict=True) for batch in pair]
    expected = [batch for epoch in one_process("homogeneous", 2) for batch in epoch]
    assert len(dealt) == len(expected) == 16
    for k, ((batch, is_padding), other) in enumerate(zip(dealt, expected, strict=True)):
        filled = not shared and k in (7, 15)  # 5 of 61 seeds are left for the last batch of 8
        assert (batch != other) == filled
        assert is_padding == ([False] * 5 + [True] * 3 if filled else [False] * len(is_padding))
    assert first[1:] == second[1:]
    _, synchronized, in_loader, _ = first
    epoch = [i % 3 == 2 for i in range(len(synchronized) // 2)]
    assert synchronized == [*epoch[:-1], True] * 2  # also with the last batch of an epoch
    assert not in_loader


CASES = list(itertools.product([False, True], [False, True], [False, True], [6, 16, 64]))


def compared():
    """Sizes of batches, and what is gathered, of ours and of a loader of torch's; with all settings of Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from manyhop_pyg import NeighborLoader

    found = []
    for split, even, drop, batch_size in CASES:
        configuration = DataLoaderConfiguration(split_batches=split, even_batches=even)
        accelerator = Accelerator(cpu=True, dataloader_config=configuration)
        options = {"batch_size": batch_size, "drop_last": drop}
        ours = accelerator.prepare(NeighborLoader(graph(), [2], num_workers=1, **options))
        theirs = accelerator.prepare(torch.utils.data.DataLoader(range(NUM_SEEDS), **options))
        for _ in range(2):
            both, first = [], []
            for loader in (ours, theirs):
                seeds, gathered = [], []
                for batch in loader:
                    ids = batch if loader is theirs else batch.input_id
                    if loader is ours:
                        assert batch.n_id[: batch.batch_size].tolist() == ids.tolist()
                        first += ids[~batch.is_padding].tolist()
                    seeds.append(ids.tolist())
                    if even or drop:  # else ranks do not have as many batches
                        gathered += accelerator.gather_for_metrics(ids).tolist()
                both.append((seeds, gathered))
            assert len(ours) == len(both[0][0])
            found.append((*both, first))
    return found


def test_ranks_have_the_seeds_that_accelerate_gives_them(launcher):
    cases = [case for case in CASES for _ in range(2)]
    for (_, even, drop, _), *ranks in zip(cases, *launcher.run(compared), strict=True):
        for ours, theirs, _ in ranks:
            assert ours == theirs
            assert not even or drop or ours[1] == list(range(NUM_SEEDS))
        assert drop or sorted(ranks[0][2] + ranks[1][2]) == list(range(NUM_SEEDS))


def refused():
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from manyhop.errors import InputError, RankError
    from manyhop_pyg import NeighborLoader

    accelerator = Accelerator(cpu=True)
    mine = torch.arange(NUM_SEEDS).chunk(2)[accelerator.process_index]
    alone = NeighborLoader(graph(), [2], mine, batch_size=8)
    assert torch.cat([batch.input_id for batch in alone]).tolist() == list(range(len(mine)))  # as it was written
    with pytest.raises(RankError, match="input_nodes"):
        accelerator.prepare(NeighborLoader(graph(), [2], mine, batch_size=8))
    sampler = torch.utils.data.SequentialSampler(range(NUM_SEEDS))
    with pytest.raises(InputError, match=r"cuts its own batches, to share them in Accelerator.prepare"):
        accelerator.prepare(NeighborLoader(graph(), [2], sampler=sampler, batch_size=8))
    halves = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    with pytest.raises(InputError, match=r"batch_size that 2 ranks can share evenly in Acc.*, got 7"):
        halves.prepare(NeighborLoader(graph(), [2], batch_size=7))


def test_what_is_not_shared(launcher):
    launcher.run(refused)


def others():
    """Loaders whose rows are not those of their seeds, whose seeds are sorted by type, or whose sizes are fixed."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from manyhop_pyg import GraphSAINTRandomWalkSampler, LinkNeighborLoader, NeighborLoader

    accelerator = Accelerator(cpu=True)
    typed = {"paper": torch.arange(NUM_SEEDS), "author": torch.arange(29)}
    seeds = []
    for batch in accelerator.prepare(NeighborLoader(typed_graph(), [2], typed, batch_size=8)):
        seeds += [(t, i) for t in typed for i in batch[t].input_id[~batch[t].is_padding].tolist()]
    links = LinkNeighborLoader(graph(), [2], neg_sampling="binary", batch_size=7)
    walks = GraphSAINTRandomWalkSampler(graph(), batch_size=6, walk_length=2, num_steps=5)
    remainders = []
    for loader in accelerator.prepare(links, walks):
        for _ in loader:
            remainders.append(accelerator.gradient_state.remainder)
    halves = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    padded, shapes = halves.prepare(NeighborLoader(graph(), [2], batch_size=16, pad="auto")), set()
    for batch in padded:
        shapes.add((tuple(batch.x.shape), tuple(batch.edge_index.shape), len(batch.seed_mask), batch.batch_size))
    return seeds, set(remainders), shapes


def test_other_kinds_of_loaders(launcher):
    (first, *one), (second, *other) = launcher.run(others)
    assert sorted(first + second) == [(t, i) for t, n in (("author", 29), ("paper", NUM_SEEDS)) for i in range(n)]
    assert one == other
    assert one[0] == {-1}
    ((_, _, *sizes),) = one[1]
    assert sizes == [8, 8]
