"""Caches of features: what they keep, on which device, and how large they are."""

import time

import numpy as np
import pytest
import torch
from gb_graphs import read_many

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError
from manyhop_graphbolt.features import cached

ROWS = torch.arange(24.0).view(8, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_cache_needs_a_gpu():
    with pytest.raises(InputError, match="CUDA device to cache rows on, found none"):
        gb.GPUCachedFeature(gb.TorchBasedFeature(ROWS), 4)
    with pytest.raises(InputError, match="CUDA device"):
        gb.gpu_cached_feature({("node", None, "x"): gb.TorchBasedFeature(ROWS)}, 1 << 20)


def test_sizes_of_caches():
    feature = gb.TorchBasedFeature(ROWS)
    assert cached.number_of_rows(feature, 4, None) == 4
    assert cached.number_of_rows(feature, None, 5 * 12) == 5
    assert cached.number_of_rows(feature, None, 5 * 12 + 1) == 6  # as in GraphBolt: never none
    assert cached.number_of_rows(feature, 100, None) == 8
    for arguments in ((None, None), (1, 1), (0, None), (None, 0), (True, None)):
        with pytest.raises(InputError, match="Expected"):
            cached.number_of_rows(feature, *arguments)
    for other in (ROWS, gb.Feature()):
        with pytest.raises(InputError, match="which this rank reads alone, got a"):
            cached.number_of_rows(other, 4, None)
    with pytest.raises(InputError, match="a DiskBasedFeature to cache rows of in memory, got a TorchBasedFeature"):
        gb.cpu_cached_feature(feature, 48)
    with pytest.raises(InputError, match="max_cache_size_in_bytes to be an integer, got '1G'"):
        gb.cpu_cached_feature({("node", None, "a"): feature}, "1G")


def test_rows_on_disk_that_are_kept_in_memory(tmp_path):
    rows = torch.rand(200, 20)
    np.save(tmp_path / "x.npy", rows.numpy())
    on_disk = gb.DiskBasedFeature(tmp_path / "x.npy", {"a": 1})
    assert (on_disk.count(), on_disk.size(), on_disk.metadata()) == (200, torch.Size([20]), {"a": 1})
    assert torch.equal(on_disk.read_into_memory().read(), rows)
    with pytest.warns(gb.GBWarning, match=r"in memory to pin, .*read_into_memory\(\)"):
        assert on_disk.pin_memory_() is on_disk
    with pytest.warns(gb.GBWarning, match="in memory to move to pinned, "):
        assert on_disk.to("pinned") is on_disk
    with pytest.raises(InputError, match="policy to be one of"):
        gb.cpu_cached_feature(on_disk, 1600, policy="random")
    caches = gb.cpu_cached_feature({("node", None, k): on_disk for k in "ab"}, 1600)
    assert [one.cache_size for one in caches.values()] == [10, 10]
    store = gb.BasicFeatureStore(caches)
    deadline = time.monotonic() + 60
    while caches["node", None, "a"].miss_rate == 1 and time.monotonic() < deadline:  # a thread selects the rows
        ids = torch.randint(0, 200, (30,)) ** 2 // 200
        for name in "ab":
            assert torch.equal(read_many(store, [("node", None, name, ids)])[0], rows[ids])
    assert 0 < caches["node", None, "a"].miss_rate < 1


@pytest.mark.gpu
@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_on_disk_that_a_gpu_caches(tmp_path, in_memory):
    rows = torch.rand(1000, 20)
    np.save(tmp_path / "x.npy", rows.numpy())
    on_disk = gb.DiskBasedFeature(tmp_path / "x.npy")
    feature = gb.GPUCachedFeature(gb.cpu_cached_feature(on_disk, 8000) if in_memory else on_disk, 100)
    store = gb.BasicFeatureStore({("node", None, "x"): feature})
    ids = torch.randint(0, 1000, (300,), device="cuda") ** 2 // 1000
    for _ in range(6):
        assert torch.equal(feature.read(ids).cpu(), rows[ids.cpu()])
        assert torch.equal(read_many(store, [("node", None, "x", ids)])[0].cpu(), rows[ids.cpu()])
    assert 0 < feature.miss_rate < 1


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_cached_features_on_a_gpu(where):
    rows = torch.randn(1000, 5)
    feature = gb.GPUCachedFeature(gb.TorchBasedFeature(rows.clone().to(where)), 100)
    store = gb.BasicFeatureStore({("node", None, "x"): feature})
    ids = torch.randint(0, 1000, (300,), device="cuda") ** 2 // 1000
    for _ in range(6):
        assert torch.equal(feature.read(ids).cpu(), rows[ids.cpu()])
        assert torch.equal(read_many(store, [("node", None, "x", ids)])[0].cpu(), rows[ids.cpu()])
    if where == "cpu":
        assert 0 < feature.miss_rate < 1
    feature.update(torch.zeros(2, 5, device=where), torch.tensor([0, 1], device=where))
    rows[:2] = 0
    assert torch.equal(feature.read(ids).cpu(), rows[ids.cpu()])
    feature.update((rows + 1).to(where))
    assert torch.equal(feature.read(ids.cpu()).cpu(), rows[ids.cpu()] + 1)
    assert feature.size() == torch.Size([5])
    assert feature.cache_size_in_bytes == 2000
    wide = torch.randn(1000, 9, dtype=torch.float64)
    for value in (wide.cuda(), wide):  # layer-wise inference: the width of the next layer
        feature.update(value)
        for _ in range(6):
            assert torch.equal(read_many(store, [("node", None, "x", ids)])[0].cpu(), wide[ids.cpu()])
    assert feature.cache_size_in_bytes == 7200
    both = gb.gpu_cached_feature({("node", None, k): gb.TorchBasedFeature(rows) for k in "ab"}, 4000)
    assert [one.cache_size for one in both.values()] == [100, 100]
