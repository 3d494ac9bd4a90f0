"""Embeddings and optimizers in folders."""

import errno
import os

import pytest
import torch
from embedding_training import NUM_ROWS, OURS, WIDTH, train

import manyhop
from manyhop.errors import CapacityError, InputError, StateError


def make(name="Adam", **options):
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, **options)
    return embedding, OURS[name](embedding)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_restart_goes_on_where_it_was(name, dtype, tmp_path):
    embedding, optimizer = make(name, dtype=dtype)
    train(embedding, optimizer, range(3))
    embedding.save(tmp_path / "table")
    optimizer.param_groups[0]["lr"] /= 2
    optimizer.save(tmp_path / "optimizer")
    train(embedding, optimizer, range(3, 6))
    other, its_optimizer = make(name, dtype=dtype, seed=9)
    other.load(tmp_path / "table")
    its_optimizer.load(tmp_path / "optimizer")
    train(other, its_optimizer, range(3, 6))
    assert torch.equal(other.weight, embedding.weight)


def test_a_saved_table_is_a_file_of_rows(tmp_path):
    embedding, _ = make()
    embedding.save(tmp_path / "table")
    assert torch.equal(manyhop.files.open(tmp_path / "table" / "weight.json").read(), embedding.weight)
    assert list(tmp_path.iterdir()) == [tmp_path / "table"]


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    embedding, _ = make()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CapacityError, match="No space left"):
        embedding.save(tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists(tmp_path):
    with pytest.raises(InputError, match="Expected a folder that does not exist"):
        make()[0].save(tmp_path)


def test_what_does_not_fit(tmp_path):
    embedding, optimizer = make()
    embedding.save(tmp_path / "table")
    optimizer.save(tmp_path / "optimizer")
    with pytest.raises(StateError, match=r"with shape \[5, 12\] and torch.float32, got \[101, 12\]"):
        manyhop.Embedding(5, WIDTH).load(tmp_path / "table")
    with pytest.raises(StateError, match=r"torch.bfloat16, got .* torch.float32"):
        make(dtype=torch.bfloat16)[0].load(tmp_path / "table")
    with pytest.raises(StateError, match=r"with the states of SGD for 1 embeddings, got .*Adam"):
        make("SGD")[1].load(tmp_path / "optimizer")
    with pytest.raises(InputError, match="there is no such folder"):
        embedding.load(tmp_path / "none")
    with pytest.raises(InputError, match="there is no such file"):
        optimizer.load(tmp_path / "table")


@pytest.mark.parametrize("name", ["table/weight.00000.bin", "optimizer/exp_avg_sq.0.00000.bin", "optimizer/facts.json"])
def test_a_damaged_file_changes_nothing(name, tmp_path):
    embedding, optimizer = make()
    train(embedding, optimizer, range(2))
    embedding.save(tmp_path / "table")
    optimizer.save(tmp_path / "optimizer")
    data = (tmp_path / name).read_bytes()
    changed = (
        data.replace(b"0.02", b"0.03") if name.endswith("json") else data[:40] + bytes([data[40] ^ 64]) + data[41:]
    )
    assert changed != data
    (tmp_path / name).write_bytes(changed)
    train(embedding, optimizer, range(2, 4))
    before = state_of(embedding, optimizer)
    with pytest.raises(InputError, match="crc32"):
        (embedding if name.startswith("table") else optimizer).load(tmp_path / name.split("/")[0])
    for now, was in zip(state_of(embedding, optimizer), before, strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0)


def state_of(embedding, optimizer):
    """Copies of all rows and states, and the numbers of the group."""
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return [embedding.weight.clone(), *(table.own.clone() for table in optimizer.tables[0]), group]
