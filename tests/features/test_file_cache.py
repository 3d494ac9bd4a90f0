"""Rows of mapped files that memory keeps: the same rows with and without, whatever is asked for."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import manyhop_dgl
import manyhop_dgl.graphbolt as gb
import manyhop_pyg
from manyhop import files
from manyhop.errors import FeatureError, InputError
from manyhop.features import cache_files, file_cache, gather
from manyhop.features import cached_files as hot_files
from manyhop.features.cached_files import not_counting
from manyhop.features.cpu_lookup import choose_rows
from manyhop.system.arrays import known, records

NUM_ROWS, WIDTH = 4000, 33  # rows of 132 bytes begin in the middle of pages


@pytest.fixture
def table(tmp_path):
    rows = np.random.default_rng(0).random((NUM_ROWS, WIDTH), dtype=np.float32)
    np.save(tmp_path / "x.npy", rows)
    return files.open(tmp_path / "x.npy").mapped(), torch.from_numpy(rows)


def asked(seed, begin=0, count=1000):
    """Row numbers of which few are asked for often."""
    drawn = np.random.default_rng(seed).zipf(1.3, count)
    return torch.from_numpy((drawn + begin) % NUM_ROWS)


def settled(*caches):
    end = time.monotonic() + 60
    while any(cache.is_renewing for cache in caches):
        assert time.monotonic() < end
        time.sleep(0.005)


def epoch(loader):
    """Return the batches; the rows that they ask for are there before the next epoch begins."""
    batches = list(loader)
    settled(*(record.file_cache for record in records() if record.file_cache is not None))
    return batches


def rate(table, rows, seeds, begin=0):
    cache = file_cache(table)
    cache.take_counts()
    for seed in seeds:
        index = asked(seed, begin)
        index = index.int() if seed % 2 else index
        assert gather([(table, index)])[0].equal(rows[index.long()])
        settled(cache)
    total, found = cache.take_counts()
    assert total == 1000 * len(seeds)
    return found / total


def test_kept_rows_follow_what_is_asked_for(table):
    table, rows = table
    cache_files([table], 0.1)
    assert rate(table, rows, range(1)) == 0  # nothing is known yet
    assert rate(table, rows, range(1, 2)) > 0.2  # the first choice comes soon
    rate(table, rows, range(2, 10))
    assert rate(table, rows, range(10, 20)) > 0.7
    rate(table, rows, range(20, 40), begin=2000)
    assert rate(table, rows, range(40, 50), begin=2000) > 0.7


def test_threads_gather_while_rows_are_replaced(table):
    table, rows = table
    cache_files([table], 64 * WIDTH * 4)
    wrong, done = [], threading.Event()

    def work(number):
        step = 0
        while not done.is_set():
            index = asked(1000 * number + step, begin=step // 5 * 37)
            step += 1
            if not gather([(table, index)])[0].equal(rows[index]):
                wrong.append((number, step))

    found, end = 0, time.monotonic() + 60
    with ThreadPoolExecutor(4) as threads:
        working = threads.map(work, range(4))
        while found < 100_000 and not wrong and time.monotonic() < end:
            time.sleep(0.01)
            found += file_cache(table).take_counts()[1]
        done.set()
        list(working)
    assert wrong == []
    assert found > 0


def test_the_rows_that_are_chosen():
    rng = np.random.default_rng(3)
    for most in (1, 7, 90, 200):
        visits = rng.integers(0, 6, 200).astype(np.uint8)
        kept = np.sort(rng.choice(200, 40, replace=False))
        slots = np.zeros(200, np.int32)
        slots[kept] = np.arange(1, 41)
        expected = sorted(range(200), key=lambda i: (-int(visits[i]), i not in kept, i))
        expected = sorted(i for i in expected[:most] if visits[i] > 0 or i in kept)
        if most == 200:  # those that are kept stay where nothing needs their place
            expected = sorted({*np.flatnonzero(visits), *kept})
        halved, come = visits >> 1, np.empty(most, np.int64)
        count = choose_rows(visits.ctypes.data, 200, slots.ctypes.data, most, come.ctypes.data)
        assert sorted([*come[:count], *np.flatnonzero(slots)]) == expected
        assert all(slots[i] in (0, 1 + np.searchsorted(kept, i)) for i in kept)
        assert visits.tolist() == halved.tolist()


def test_rows_that_no_batch_asks_for_are_not_counted(table):
    table, rows = table
    cache_files([table], 0.1)
    with not_counting():
        assert gather([(table, torch.arange(40))])[0].equal(rows[:40])
    gather([(table, torch.arange(100, 140))])
    cache = file_cache(table)
    cache.renew(table)
    settled(cache)
    assert cache.cached_ids().tolist() == list(range(100, 140))
    assert cache.take_counts() == (40, 0)


def test_what_is_written_later_is_read(table):
    table, rows = table
    cache_files([table], 0.5)
    for seed in range(20):
        gather([(table, asked(seed))])
    settled(file_cache(table))
    table[5] = -1.0
    assert file_cache(table) is None
    assert gather([(table, torch.tensor([5, 6]))])[0].equal(torch.stack([torch.full((WIDTH,), -1.0), rows[6]]))


def test_a_cache_that_another_thread_removes_serves_its_last_gather(table):
    table, rows = table

    class Removed(hot_files.FileCache):
        def is_of(self, source):
            known(source).file_cache = None
            return super().is_of(source)

    cache_files([table], 0.5)
    file_cache(table).__class__ = Removed
    assert gather([(table, torch.arange(40))])[0].equal(rows[:40])


def test_sizes_and_errors(table, tmp_path):
    table, rows = table
    with pytest.raises(InputError, match=r"from 0\.0 to 1\.0"):
        cache_files([table], 1.5)
    with pytest.raises(InputError, match="a float"):
        cache_files([table], "1GB")
    np.save(tmp_path / "y.npy", np.zeros((10, 4), np.float32))
    short = files.open(tmp_path / "y.npy").mapped()
    with torch.device("meta"):  # as if torch's default device were a GPU
        cache_files([table, short], rows.nbytes // 4)
    assert file_cache(table).capacity == NUM_ROWS // 4
    assert file_cache(short) is None  # rows of 16 bytes
    with pytest.raises(FeatureError, match=r"in \[0, 4000\).*4000 \(at position 1\)"):
        gather([(table, torch.tensor([3, 4000]))])
    cache_files([table], 0)
    assert file_cache(table) is None
    with pytest.raises(InputError, match="Expected cache only"):
        manyhop_pyg.FeatureStore(placement="shared", cache=0.1)


@pytest.fixture
def folder(tmp_path):
    generator = torch.Generator().manual_seed(0)
    dst = torch.randint(0, 2000, (20_000,), generator=generator)
    src = (2000 * torch.rand(20_000, generator=generator) ** 4).long()
    x = torch.randn(2000, 20, generator=generator)
    data = Data(x=x, y=torch.arange(2000), edge_index=torch.stack([src, dst]))
    manyhop_pyg.save(data, tmp_path / "g")
    return tmp_path / "g"


def pyg_loader(folder, size):
    data = manyhop_pyg.open(folder, placement="mapped", cache=size)
    return manyhop_pyg.NeighborLoader(data, [5, 3], batch_size=100, shuffle=True, seed=7, num_workers=2)


def stores_loader(folder, size):
    found = files.open_graph(folder)
    features = manyhop_pyg.FeatureStore(placement="mapped", cache=size)
    features.put_tensor(found.nodes["_N"].tensors["x"], group_name=None, attr_name="x", index=None)
    (kept,) = found.edges.values()
    edges, pair = manyhop_pyg.GraphStore(), (kept.row.read(), kept.colptr.read())
    edges.put_edge_index(pair, edge_type=None, layout="csc", size=(2000, 2000))
    return manyhop_pyg.NeighborLoader((features, edges), [5, 3], batch_size=100, shuffle=True, seed=7, num_workers=2)


def dgl_loader(folder, size):
    g = manyhop_dgl.Graph.open(folder, placement="mapped", cache=size)
    sampler = manyhop_dgl.NeighborSampler([5, 3], prefetch_node_feats=["x"])
    options = {"batch_size": 100, "shuffle": True, "output": "tensors", "seed": 3}
    return manyhop_dgl.DataLoader(g, torch.arange(2000), sampler, **options)


def graphbolt_loader(folder, size):
    stored = files.open_graph(folder)
    (edges,) = stored.edges.values()
    feature = gb.DiskBasedFeature(stored.nodes["_N"].tensors["x"].paths[0])
    feature = feature if size is None else gb.cpu_cached_feature(feature, size)
    items = gb.ItemSampler(gb.ItemSet(torch.arange(2000), names="seeds"), batch_size=100, shuffle=True, seed=3)
    pipe = items.sample_neighbor(gb.fused_csc_sampling_graph(edges.colptr.read(), edges.row.read()), [5, 3])
    features = gb.BasicFeatureStore({("node", None, "x"): feature})
    loader = gb.DataLoader(pipe.fetch_feature(features, node_feature_keys=["x"]), num_workers=2)
    loader.feature = feature
    return loader


def rows_of(batch):
    return batch.x if hasattr(batch, "x") else batch.node_features["x"]


@pytest.mark.parametrize("make", [pyg_loader, stores_loader, dgl_loader, graphbolt_loader])
def test_batches_of_loaders_stay_the_same_and_find_rows_in_the_cache(folder, make):
    loader, without = make(folder, 2000 * 80 // 5), make(folder, None)
    for _ in range(2):
        for batch, expected in zip(epoch(loader), epoch(without), strict=True):
            assert torch.equal(rows_of(batch), rows_of(expected))
    assert loader.stats().seeds == without.stats().seeds == 4000  # not those of batches that nobody asked for
    assert without.stats().cache_hit_rate == 0
    for _ in range(50):  # once the cache had the time to take the rows that come often
        if (found := loader.stats(since="epoch").cache_hit_rate) > 0.3:
            break
        epoch(loader)
    assert found > 0.3
    if make is graphbolt_loader:
        assert loader.feature.miss_rate == pytest.approx(1 - loader.stats().cache_hit_rate)
        loader.feature.update(torch.zeros(1, 20), torch.tensor([4]))
        assert not loader.feature.read(torch.tensor([4])).any()


def test_batches_received_alone_are_counted_by_their_loader(folder):
    data = manyhop_pyg.open(folder, placement="mapped", cache=0.2)
    loader, other = (manyhop_pyg.NeighborLoader(data, [5, 3], batch_size=100, num_workers=2) for _ in range(2))
    epoch(loader)
    before, iterator = loader.stats(), iter(other)
    nodes = next(iterator).num_nodes
    iterator.close()
    assert other.stats().totals["other_rows"] == nodes
    assert loader.stats().totals == before.totals


@pytest.mark.parametrize("open_", [manyhop_pyg.open, manyhop_dgl.Graph.open])
def test_a_cache_of_memory_is_refused(folder, open_):
    with pytest.raises(InputError, match="only with placement='mapped' or 'auto'"):
        open_(folder, placement="process", cache=0.1)


def test_a_size_by_the_memory_that_is_available(tmp_path, monkeypatch):
    row = 4 * WIDTH
    for name in "xz":
        np.save(tmp_path / f"{name}.npy", np.zeros((NUM_ROWS, WIDTH), np.float32))
    monkeypatch.setattr(hot_files, "available_memory", lambda: 4 * (1000 * row + 5 * NUM_ROWS))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    store = manyhop_pyg.FeatureStore(placement="mapped", cache="auto")
    store.put_tensor(files.open(tmp_path / "x.npy"), group_name=None, attr_name="x", index=None)
    ((_, x),) = store.named_tensors()
    assert file_cache(x).capacity == 1000  # of half of it, one of two ranks
    text = hot_files.in_words([file_cache(x)])
    assert text.startswith(
        "128.9 KiB of 515.6 KiB of rows in files are kept in memory (half of the 593.8 KiB that were"
    )
    assert text.endswith("divided by 2 ranks)")
    store.put_tensor(files.open(tmp_path / "z.npy"), group_name=None, attr_name="z", index=None)
    kept = file_cache(x)
    store.named_tensors()
    assert file_cache(x) is kept  # although there is less memory by now
    edges = torch.arange(40).view(2, 20)
    graphs = manyhop_pyg.GraphStore()
    graphs.put_edge_index(edges, edge_type=None, layout="coo", size=(NUM_ROWS, NUM_ROWS))
    loader = manyhop_pyg.NeighborLoader((store, graphs), [2], torch.arange(10), batch_size=5)
    epoch(loader)
    assert "of rows in files are kept in memory" in str(loader.stats())
    with pytest.raises(InputError, match="only with placement='mapped'"):
        manyhop_pyg.FeatureStore(placement="sharded", cache="auto")
    with pytest.raises(InputError, match="or 'auto', got 'all'"):
        cache_files([x], "all")
