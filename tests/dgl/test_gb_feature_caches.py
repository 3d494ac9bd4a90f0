"""Caches of features: what they keep, on which device, and how large they are."""

import numpy as np
import pytest
import torch

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


class _Counted:
    """A feature that counts how many rows it is asked for, and can be changed."""

    def __init__(self):
        self.rows, self.asked = ROWS.repeat(5, 1), 0

    def read(self, ids=None):
        if ids is None:
            return self.rows
        self.asked += ids.numel()
        return self.rows[ids]

    def size(self):
        return torch.Size([3])

    def update(self, value, ids=None):
        self.rows = self.rows.clone() if ids is not None else value
        if ids is not None:
            self.rows[ids] = value


def test_rows_that_are_asked_for_often_are_kept():
    feature = _Counted()
    hot = cached.CachedFeature(feature, torch.device("cpu"), 3)
    often, ids = torch.tensor([5, 11, 30]), torch.tensor([30, 2, 5, 11, 39])
    assert hot.miss_rate == 1
    for k in range(7):
        assert torch.equal(hot.read(torch.cat([often, torch.tensor([k])])), feature.rows[[5, 11, 30, k]])
    before = feature.asked
    assert torch.equal(hot.read(ids), feature.rows[ids])
    assert feature.asked - before == 2
    assert hot.miss_rate == pytest.approx(3 / 9)  # the last of the seven reads found three of its four rows
    hot.update(torch.full((1, 3), -1.0), torch.tensor([11]))
    assert torch.equal(hot.read(ids), feature.rows[ids])
    hot.update(feature.rows + 7)
    assert torch.equal(hot.read(ids), feature.rows[ids])


def test_a_cache_keeps_its_bytes_when_the_feature_is_replaced():
    feature = gb.TorchBasedFeature(ROWS.repeat(5, 1))
    hot = gb.CPUCachedFeature(feature, 48)
    assert hot.cache_size == 4
    value = torch.arange(1_000).view(100, 10)  # 80 bytes per row
    hot.update(value)
    assert (hot.cache_size, hot.count()) == (1, 100)
    for _ in range(12):
        assert torch.equal(hot.read(torch.tensor([99, 7])), value[[99, 7]])


def test_sizes_of_caches():
    feature = gb.TorchBasedFeature(ROWS)
    assert cached.number_of_rows(feature, 4, None) == 4
    assert cached.number_of_rows(feature, None, 5 * 12) == 5
    assert cached.number_of_rows(feature, None, 5 * 12 + 1) == 6  # as in GraphBolt: never none
    assert cached.number_of_rows(feature, 100, None) == 8
    for arguments in ((None, None), (1, 1), (0, None), (None, 0), (True, None)):
        with pytest.raises(InputError, match="Expected"):
            cached.number_of_rows(feature, *arguments)
    with pytest.raises(InputError, match="instance of Feature"):
        cached.number_of_rows(ROWS, 4, None)
    for features in (feature, {("node", None, "a"): feature}):
        with pytest.raises(InputError, match="max_cache_size_in_bytes to be an integer, got '1G'"):
            gb.cpu_cached_feature(features, "1G")


def test_rows_on_disk_that_are_kept_in_memory(tmp_path):
    rows = torch.rand(200, 5)
    np.save(tmp_path / "x.npy", rows.numpy())
    on_disk = gb.DiskBasedFeature(tmp_path / "x.npy", {"a": 1})
    assert (on_disk.count(), on_disk.size(), on_disk.metadata()) == (200, torch.Size([5]), {"a": 1})
    assert torch.equal(on_disk.read_into_memory().read(), rows)
    with pytest.warns(gb.GBWarning, match=r"in memory to pin, .*read_into_memory\(\)"):
        assert on_disk.pin_memory_() is on_disk
    with pytest.warns(gb.GBWarning, match="in memory to move to pinned, "):
        assert on_disk.to("pinned") is on_disk
    with pytest.raises(InputError, match="policy to be one of"):
        gb.cpu_cached_feature(on_disk, 400, policy="random")
    caches = gb.cpu_cached_feature({("node", None, k): on_disk for k in "ab"}, 400)
    assert [one.cache_size for one in caches.values()] == [10, 10]
    store = gb.BasicFeatureStore(caches)
    for _ in range(40):
        ids = torch.randint(0, 200, (30,)) ** 2 // 200
        for name in "ab":
            assert torch.equal(gb.read_many(store, [("node", None, name, ids)])[0], rows[ids])
    assert 0 < caches["node", None, "a"].miss_rate < 1


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_cached_features_on_a_gpu(where):
    rows = torch.randn(1000, 5)
    feature = gb.GPUCachedFeature(gb.TorchBasedFeature(rows.clone().to(where)), 100)
    store = gb.BasicFeatureStore({("node", None, "x"): feature})
    ids = torch.randint(0, 1000, (300,), device="cuda") ** 2 // 1000
    for _ in range(6):
        assert torch.equal(feature.read(ids).cpu(), rows[ids.cpu()])
        assert torch.equal(gb.read_many(store, [("node", None, "x", ids)])[0].cpu(), rows[ids.cpu()])
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
            assert torch.equal(gb.read_many(store, [("node", None, "x", ids)])[0].cpu(), wide[ids.cpu()])
    assert feature.cache_size_in_bytes == 7200
    both = gb.gpu_cached_feature({("node", None, k): gb.TorchBasedFeature(rows) for k in "ab"}, 4000)
    assert [one.cache_size for one in both.values()] == [100, 100]
