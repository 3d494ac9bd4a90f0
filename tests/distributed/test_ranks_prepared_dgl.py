"""Scripts of Accelerate and Ray Train: their ranks share the batches of DGL's and GraphBolt's loaders."""

import itertools

import pytest
import torch

import manyhop_dgl
import manyhop_dgl.graphbolt as gb

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

NUM_SEEDS = 61
EDGES = torch.randint(0, NUM_SEEDS, (2, 300), generator=torch.Generator().manual_seed(0))
KINDS = ("DGL", "GraphBolt", "lists", "pieces")
"""Of the seeds: tensors, lists, and such as are shuffled in pieces."""


def make(kind, *, batch_size=8, drop_last=False, shuffle=False, pad=None):
    options = {"batch_size": batch_size, "drop_last": drop_last, "shuffle": shuffle, "seed": 5}
    if kind == "DGL":
        graph = dgl.graph(tuple(EDGES), num_nodes=NUM_SEEDS)
        sampler = manyhop_dgl.NeighborSampler([3, 2], seed=5)
        return manyhop_dgl.DataLoader(graph, torch.arange(NUM_SEEDS), sampler, num_workers=1, pad=pad, **options)
    seeds = list(range(NUM_SEEDS)) if kind == "lists" else torch.arange(NUM_SEEDS)
    if kind == "pieces":
        options |= {"shuffle": True, "buffer_size": 24}
    pipe = gb.ItemSampler(gb.ItemSet(seeds, names="seeds"), **options)
    if kind != "lists":
        graph = gb.from_dglgraph(dgl.graph(tuple(EDGES), num_nodes=NUM_SEEDS), is_homogeneous=True)
        pipe = pipe.sample_neighbor(graph, [3, 2])
    return gb.DataLoader(pipe, pad=pad)


def seeds_of(batch):
    return batch[1] if isinstance(batch, list | tuple) else batch.seeds


def plain(batch):
    nodes = batch[0] if isinstance(batch, list | tuple) else batch.input_nodes
    return seeds_of(batch).tolist(), nodes.tolist()


CASES = list(itertools.product([False, True], [False, True], [False, True], [6, 64]))


def compared():
    """By kind: seeds of batches, and what is gathered, of ours and of a loader of torch's; with all settings."""
    return {kind: [compared_in(case, kind) for case in CASES] for kind in KINDS}


def compared_in(case, kind):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    split, even, drop, batch_size = case
    configuration = DataLoaderConfiguration(split_batches=split, even_batches=even)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    ours = accelerator.prepare(make(kind, batch_size=batch_size, drop_last=drop))
    theirs = torch.utils.data.DataLoader(range(NUM_SEEDS), batch_size=batch_size, drop_last=drop)
    both = []
    for loader in (ours, accelerator.prepare(theirs)):
        seeds, gathered = [], []
        for batch in loader:
            ids = seeds_of(batch) if loader is ours else batch
            seeds.append(ids.tolist())
            if even or drop:  # else ranks do not have as many batches
                gathered += accelerator.gather_for_metrics(ids).tolist()
        both.append((seeds, gathered))
    assert len(ours) == len(both[0][0])
    return both


def test_ranks_have_the_seeds_that_accelerate_gives_them(launcher):
    pytest.importorskip("accelerate")
    first, second = launcher.run(compared)
    for kind, i in itertools.product(KINDS, range(len(CASES))):
        ranks = first[kind][i], second[kind][i]
        _, even, drop, _ = CASES[i]
        for ours, theirs in ranks:
            if kind == "pieces":  # in an order of its own
                assert [len(seeds) for seeds in ours[0]] == [len(seeds) for seeds in theirs[0]]
                assert sorted(ours[1]) == theirs[1] or drop
            else:
                assert ours == theirs
        seen = [seed for ours, _ in ranks for seeds in ours[0] for seed in seeds]
        assert drop or set(seen) == set(range(NUM_SEEDS))
        assert not drop or len(seen) == len(set(seen))
        assert even or len(seen) == len(set(seen))


def several_epochs():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, found = torch.nn.Linear(1, 1), []
    for kind, pad in PADDED:
        loader = accelerator.prepare(make(kind, shuffle=True, pad=pad))
        batches, synchronized = [], []
        for batch in itertools.chain(loader, loader):
            with accelerator.accumulate(model):
                batches.append(plain(batch))
                synchronized.append(accelerator.sync_gradients)
        found.append((batches, synchronized, loader.distributed))
    return found


PADDED = list(itertools.product(("DGL", "GraphBolt"), (None, "auto")))


def test_batches_are_those_of_one_process(launcher):
    pytest.importorskip("accelerate")
    for (kind, pad), first, second in zip(PADDED, *launcher.run(several_epochs), strict=True):
        assert first[1:] == second[1:]
        assert first[1][3:8:4] == [True, True]  # the last batch of an epoch
        assert first[2]
        dealt = [batch for pair in zip(first[0], second[0], strict=True) for batch in pair]
        assert len({len(batch[0]) for batch in dealt}) == 1  # the last one is filled with the first seeds
        if pad is None:
            alone = make(kind, shuffle=True)
            expected = [plain(batch) for _ in range(2) for batch in alone]
            assert [batch == other for batch, other in zip(dealt, expected, strict=True)] == ([True] * 7 + [False]) * 2


def others():
    """Loaders whose rows are not those of their seeds, whose seeds are sorted by type, or whose ranks share already."""
    from accelerate import Accelerator

    from manyhop.errors import RankError

    accelerator = Accelerator(cpu=True)
    graph = dgl.graph(tuple(EDGES), num_nodes=NUM_SEEDS)
    edges = manyhop_dgl.as_edge_prediction_sampler(
        manyhop_dgl.NeighborSampler([2]), negative_sampler=dgl.dataloading.negative_sampler.Uniform(1)
    )
    links = manyhop_dgl.DataLoader(graph, torch.arange(300), edges, batch_size=7)
    pairs = gb.ItemSampler(gb.ItemSet(EDGES.t().contiguous(), names="seeds"), batch_size=7)
    pairs = gb.DataLoader(pairs.sample_uniform_negative(gb.from_dglgraph(graph, is_homogeneous=True), 1))
    remainders = set()
    for loader in accelerator.prepare(links, pairs):
        for _ in loader:
            remainders.add(accelerator.gradient_state.remainder)
    typed = dgl.heterograph({("a", "to", "b"): tuple(EDGES), ("b", "back", "a"): tuple(EDGES)})
    ids = {"a": torch.arange(40), "b": torch.arange(21)}
    found = []
    sets = gb.HeteroItemSet({kind: gb.ItemSet(values, names="seeds") for kind, values in ids.items()})
    for loader in (
        manyhop_dgl.DataLoader(typed, ids, manyhop_dgl.NeighborSampler([2]), batch_size=8),
        gb.DataLoader(gb.ItemSampler(sets, batch_size=8)),
    ):
        loader = accelerator.prepare(loader)
        seeds = [seeds_of(batch) for batch in loader]
        found.append([(kind, i) for batch in seeds for kind, some in batch.items() for i in some.tolist()])
    ddp = {"use_ddp": True, "rank_timeout": 60.0}
    given = manyhop_dgl.DataLoader(graph, torch.arange(NUM_SEEDS), manyhop_dgl.NeighborSampler([2]), **ddp)
    dealt = gb.DataLoader(gb.DistributedItemSampler(gb.ItemSet(NUM_SEEDS, names="seeds"), batch_size=8))
    assert accelerator.prepare(given, dealt) == (given, dealt)
    lengths = len(given), len(dealt)
    mine = torch.arange(NUM_SEEDS).chunk(2)[accelerator.process_index]
    with pytest.raises(RankError, match="indices"):
        accelerator.prepare(manyhop_dgl.DataLoader(graph, mine, manyhop_dgl.NeighborSampler([2]), batch_size=31))
    with pytest.raises(RankError, match="items"):
        accelerator.prepare(gb.DataLoader(gb.ItemSampler(gb.ItemSet(mine, names="seeds"), batch_size=31)))
    return remainders, found, lengths


def test_other_kinds_of_loaders(launcher):
    pytest.importorskip("accelerate")
    (remainders, first, lengths), (_, second, _) = launcher.run(others)
    assert remainders == {-1}
    assert lengths == (31, 4)
    for one, other in zip(first, second, strict=True):
        assert set(one + other) == {("a", i) for i in range(40)} | {("b", i) for i in range(21)}


# As Ray Train's function reads the attribute.
RAY = {"__name__": "ray.train.torch.train_loop_utils"}
exec("def prepare_data_loader(loader, add_dist_sampler=True):\n    loader.sampler\n    return loader", RAY)


def prepared_by_ray():
    import manyhop

    manyhop.init()
    prepare, found = RAY["prepare_data_loader"], []
    for kind in KINDS:
        loaders = [prepare(make(kind), add_dist_sampler=False)]
        for drop in (False, True):
            loaders.append(prepare(make(kind, drop_last=drop)))
            loaders[-1].sampler.set_epoch(0)  # as scripts of Ray Train do
        found.append([[seed for batch in loader for seed in seeds_of(batch).tolist()] for loader in loaders])
    return found


def test_ray_train(launcher):
    for (whole, *first), (_, *second) in zip(*launcher.run(prepared_by_ray), strict=True):
        assert sorted(whole) == list(range(NUM_SEEDS))
        full, dropped = ([*a, *b] for a, b in zip(first, second, strict=True))
        assert sorted(full) == list(range(NUM_SEEDS))  # 8 batches
        assert len(dropped) == len(set(dropped)) == 48  # 6 of 7 batches that are full
