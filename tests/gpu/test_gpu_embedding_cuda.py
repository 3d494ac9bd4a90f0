"""Embeddings on GPUs: equal to torch's optimizers for sparse gradients, in every place that one GPU has."""

import sys
from pathlib import Path

import pytest
import torch
from embedding_training import NUM_ROWS, OURS, WIDTH, batch, loss_of, trained_by_torch

import manyhop
from manyhop import optim
from manyhop.errors import FeatureError

sys.path.insert(0, str(Path(__file__).parents[1] / "pyg"))
from test_embeddings_in_data import train as train_on_batches

pytestmark = pytest.mark.gpu
WHOLE = pytest.mark.needs("pylibwholegraph")
PLACES = ["device", "pinned", *[pytest.param(place, marks=WHOLE) for place in ("sharded", "distributed")]]


def train(embedding, optimizer, steps):
    for step in steps:
        ids, factors = (each.cuda() for each in batch(step))
        loss_of(embedding(ids), factors).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("placement", PLACES)
def test_equals_torch(name, placement):
    device = "cuda" if placement == "sharded" else None
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement=placement, device=device, seed=3)
    start = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3).weight
    assert torch.equal(embedding.weight.cpu(), start)
    assert embedding.sorts_early
    assert embedding.place.device == torch.tensor([2, 1], device="cuda").device
    train(embedding, OURS[name](embedding), range(5))
    torch.cuda.synchronize()
    expected = trained_by_torch(start, name, range(5))
    torch.testing.assert_close(embedding.weight.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_rows_of_host_memory_for_a_model_on_a_gpu():
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3)
    start = embedding.weight.clone()
    train(embedding, OURS["Adam"](embedding), range(3))
    assert embedding(torch.tensor([1], device="cuda")).is_cuda
    torch.testing.assert_close(embedding.weight, trained_by_torch(start, "Adam", range(3)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [3, 128, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_as_on_the_cpu(width, dtype):
    ids = torch.randint(0, 5000, (20_000,))
    grads = torch.randn(20_000, width)
    tables = []
    for placement, device in (("process", "cpu"), ("device", "cuda")):
        embedding = manyhop.Embedding(5000, width, dtype=dtype, placement=placement)
        optimizer = optim.Adam(embedding, lr=0.01)
        for _ in range(2):
            embedding(ids.to(device)).backward(grads.to(device, dtype))
            optimizer.step()
        tables.append(embedding.weight.cpu().float())
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-3}
    torch.testing.assert_close(*tables, **tolerance)


def test_saved_from_a_gpu_and_loaded_on_the_host(tmp_path):
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement="pinned")
    optimizer = OURS["Adam"](embedding)
    train(embedding, optimizer, range(2))
    embedding.save(tmp_path / "table")
    optimizer.save(tmp_path / "adam")
    other = manyhop.Embedding(NUM_ROWS, WIDTH, seed=1)
    its_optimizer = OURS["Adam"](other)
    other.load(tmp_path / "table")
    its_optimizer.load(tmp_path / "adam")
    for each, its in ((embedding, optimizer), (other, its_optimizer)):
        train(each, its, range(2, 4))
    torch.cuda.synchronize()
    torch.testing.assert_close(embedding.weight.cpu(), other.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", [*PLACES, "shared"])
def test_rows_that_come_with_batches(placement):
    """Training is the same to the last bit, whether loaders gather rows ahead or the loop does."""
    place_on = "cuda" if placement == "sharded" else None
    for options in ({}, {"num_workers": 2, "prefetch_factor": 8}):
        expected = train_on_batches(False, placement, place_on, "cuda", **options)
        found = train_on_batches(True, placement, place_on, "cuda", **options)
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("placement", ["pinned", "device", "shared"])
def test_rows_that_come_with_blocks_of_dgl(placement):
    pytest.importorskip("manyhop_dgl")  # makes dgl importable
    pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
    sys.path.insert(0, str(Path(__file__).parents[1] / "dgl"))
    from test_embeddings_in_graph import train as train_on_blocks

    for options in ({}, {"num_workers": 2}):
        expected = train_on_blocks(False, placement, None, "cuda", **options)
        found = train_on_blocks(True, placement, None, "cuda", **options)
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("placement", ["device", "pinned"])
def test_ids_out_of_range_change_nothing(placement):
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement=placement)
    optimizer = OURS["Adam"](embedding)
    before = embedding.weight.clone()
    ids = torch.tensor([3, NUM_ROWS], device="cuda")
    embedding(ids).sum().backward()
    with pytest.raises(FeatureError, match=f"got {NUM_ROWS}"):
        optimizer.step()
    with torch.no_grad(), pytest.raises(FeatureError, match=f"got {NUM_ROWS}"):
        embedding(ids)
    optimizer.step()
    torch.cuda.synchronize()
    assert torch.equal(embedding.weight, before)
