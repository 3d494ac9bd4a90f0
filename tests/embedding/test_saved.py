"""Embeddings and optimizers in folders."""

import pytest
import torch
from embedding_training import NUM_ROWS, OURS, WIDTH, train

import manyhop
from manyhop.errors import InputError, StateError


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
    assert not (tmp_path / "table.partial").exists()


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


def test_a_damaged_file(tmp_path):
    embedding, _ = make()
    embedding.save(tmp_path / "table")
    part = tmp_path / "table" / "weight.00000.bin"
    data = bytearray(part.read_bytes())
    data[40] ^= 1
    part.write_bytes(data)
    with pytest.raises(InputError, match="crc32"):
        embedding.load(tmp_path / "table")
