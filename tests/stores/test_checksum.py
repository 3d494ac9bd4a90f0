"""Checksums: every entry of small tensors, the same sampled ones of large tensors, whatever holds them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from manyhop.errors import InputError
from manyhop.memory.stores import checksum
from manyhop.memory.stores.copies import _products, _sampled

SAMPLED = 64 << 10  # bytes
DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    drawn = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1))
    return (drawn > 50) if dtype == torch.bool else drawn.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3001, 3), (1024, 9)])
def test_every_entry_of_a_small_tensor_counts(shape, dtype):
    x = numbers(*shape, dtype=dtype)
    before = checksum(x)
    for at in (0, x.numel() // 2, x.numel() - 1):
        y = x.clone()
        y.view(-1)[at] = ~y.view(-1)[at] if dtype == torch.bool else y.view(-1)[at] + 1
        assert checksum(y) != before
    assert checksum(x.clone()) == before


def test_order_dtype_and_shape_count():
    x = torch.arange(100_000)
    swapped = x.clone()
    swapped[[10, 11]] = x[[11, 10]]
    far = x.clone()
    far[[10, 50_010]] = x[[50_010, 10]]
    blocks = torch.cat([x[1024:2048], x[:1024], x[2048:]])
    found = [checksum(t) for t in (x, swapped, far, blocks, x.view(2, -1), x.view(torch.float64), x[:-1])]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("whole", [SAMPLED, 1 << 20])
def test_the_layout_in_memory_does_not_count(whole):
    x = numbers(5000, 12, dtype=torch.int16)
    wide = torch.zeros(5000, 30, dtype=torch.int16)
    wide[:, 1:25:2] = x
    unaligned = torch.frombuffer(bytearray(b" " + x.numpy().tobytes()), dtype=torch.uint8)[1:]
    assert checksum(x.t().contiguous().t(), whole=whole) == checksum(x, whole=whole)
    assert checksum(wide[:, 1:25:2], whole=whole) == checksum(x, whole=whole)
    assert checksum(unaligned, whole=whole) == checksum(x.view(torch.uint8).view(-1), whole=whole)


def test_large_tensors_are_sampled_at_places_spread_over_all_columns():
    x = torch.zeros(4096, 128)
    rows, columns = map(torch.from_numpy, _sampled(x.shape))
    assert len(rows) == 4096
    assert {0, 4095} <= set(rows.tolist())
    assert set(columns.tolist()) == set(range(128))
    assert rows.diff().max() <= 2 * 4096 // 1024
    before = checksum(x, whole=SAMPLED)
    for at in (0, 2000, 4095):
        y = x.clone()
        y[rows[at], columns[at]] = 1
        assert checksum(y, whole=SAMPLED) != before
    unseen = torch.ones(4096, 128, dtype=torch.bool)
    unseen[rows, columns] = False
    x[unseen] = 1
    assert checksum(x, whole=SAMPLED) == before


def test_products_are_those_of_devices_that_multiply_no_matrices():
    blocks = torch.randint(-(2**63), 2**63 - 1, (5, 1024))
    factors = _products(torch.eye(1024, dtype=torch.int64))
    assert torch.equal(_products(blocks), (blocks * factors).sum(1))
    expected = (blocks.numpy().view(np.uint64) * factors.numpy().view(np.uint64)).sum(1)
    assert np.array_equal(_products(blocks).numpy().view(np.uint64), expected)


def test_files_and_other_processes_have_the_same_checksum(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(30_000, dtype=np.int32))
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert [checksum(array), checksum(array, whole=SAMPLED)] == [1090057129, 4050567137]
    assert [checksum(mapped), checksum(mapped, whole=SAMPLED)] == [1090057129, 4050567137]


def test_empty_and_scalar_tensors():
    assert checksum(torch.empty(0)) != checksum(torch.empty(0, 3))
    assert checksum(torch.tensor(1)) != checksum(torch.tensor(2))
    assert checksum(torch.ones(2, requires_grad=True)) == checksum(torch.ones(2))


def test_strides_of_a_tensor_without_entries_do_not_count():
    for x in (torch.empty(2, 0), torch.empty(0, 2)[:, 1], torch.empty(1).expand(0), torch.empty(3)[::2][:0]):
        assert checksum(x) == checksum(torch.empty(x.shape))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_conjugates_and_negatives_are_those_of_their_values(dtype):
    x = torch.rand(7, 3, dtype=dtype)
    view = x.conj() if dtype.is_complex else torch._neg_view(x)
    assert checksum(view) == checksum(torch.empty(7, 3, dtype=dtype).copy_(view)) != checksum(x)


def test_tensors_without_numbers_of_their_dtype_are_refused():
    with FakeTensorMode():
        fake = torch.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # new versions of torch deprecate it
        quantized = torch.quantize_per_tensor(torch.rand(12), 0.1, 0, torch.qint8)
    for x in (fake, quantized, torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(InputError, match="Expected a dense tensor with its own memory, got a tensor"):
            checksum(x)
