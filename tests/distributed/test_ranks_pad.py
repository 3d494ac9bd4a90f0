"""``pad="auto"`` on ranks that share batches: all of them find the sizes of the one-process run, without a word."""

import torch
from rank_loaders import LOADERS, NUM_SEEDS, digest

NAMES = ("homogeneous", "heterogeneous", "hgt", "binary", "triplet", "several_edge_types", "around_seeds")


def shapes(batch):
    return [
        (store._key, key, value.shape)
        for store in batch.stores
        for key, value in store.items()
        if torch.is_tensor(value)
    ]


def seeds_that_count(batch):
    """Types and positions of the seeds that are neither padding nor repetitions."""
    stores = [s for s in batch.stores if "is_padding" in s]
    return [(s._key, i) for s in stores for i in s.input_id[~s.is_padding].tolist()]


def padded_batches():
    out = {}
    for name in NAMES:
        loader = LOADERS[name](distributed=True, seed=5, pad="auto")
        batches = list(loader)
        same = all(shapes(batch) == shapes(batches[0]) for batch in batches)
        digests = [digest(batch) for batch in batches]
        out[name] = same, loader._padding.sizes, digests, [i for batch in batches for i in seeds_that_count(batch)]
    return out


def test_sizes_of_all_ranks(launcher):
    ranks = launcher.run(padded_batches, world_size=3)
    for name in NAMES:
        loader = LOADERS[name](seed=5, pad="auto")
        expected = [digest(batch) for batch in loader]
        rounds = -(-len(expected) // 3)
        for rank, seen in enumerate(ranks):
            same, sizes, digests, _ = seen[name]
            assert same
            assert sizes == loader._padding.sizes
            assert digests == [expected[(3 * i + rank) % len(expected)] for i in range(rounds)]
        counted = [seed for seen in ranks for seed in seen[name][3]]
        number = len(expected) * loader.batch_size if loader.drop_last else NUM_SEEDS
        assert len(set(counted)) == len(counted) == number, name
