"""Embeddings among the data of a loader: rows come with the batch, ahead of time, and are those of that time."""

import threading

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop
from manyhop.errors import FeatureError, InputError
from manyhop_embedding import RowsAhead
from manyhop_pyg import LinkNeighborLoader, NeighborLoader

NODES, WIDTH, CLASSES = 400, 8, 5


def make_data():
    draw = torch.Generator().manual_seed(0)
    data = Data(edge_index=torch.randint(0, NODES, (2, 4000), generator=draw), num_nodes=NODES)
    data.x, data.y = torch.randn(NODES, 3, generator=draw), torch.arange(NODES) % CLASSES
    return data


def losses_of(loader, rows_of, embedding, epochs=2, device="cpu"):
    """Train a small model on rows alone, which has the same bits in each run, on GPUs, too; of each step the loss."""
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, CLASSES).to(device)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), manyhop.optim.Adam(embedding, lr=0.05)]
    losses = []
    for _ in range(epochs):
        for batch in loader:
            rows = rows_of(batch)
            assert rows.requires_grad
            loss = torch.nn.functional.cross_entropy(model(rows), batch.y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    return torch.stack(losses).tolist()


def train(ahead, placement="shared", place_on=None, device="cpu", **options):
    """Return losses and the table."""
    data = make_data()
    embedding = manyhop.Embedding(NODES, WIDTH, placement=placement, device=place_on, seed=1)
    if ahead:
        data.emb = embedding
    loader = NeighborLoader(data, [5, 5], shuffle=True, seed=3, device=device, **{"batch_size": 16} | options)
    rows_of = (lambda batch: batch.emb) if ahead else (lambda batch: embedding(batch.n_id))
    losses = losses_of(loader, rows_of, embedding, device=device)
    with torch.no_grad():
        return losses, embedding(torch.arange(NODES, device=device)).clone()


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        (False, {}),
        (False, {"num_workers": 3, "prefetch_factor": 6}),
        (True, {}),
        (True, {"num_workers": 2}),
        (True, {"num_workers": 1, "filter_per_worker": False}),
    ],
)
def test_training_is_the_same_to_the_last_bit(on_gpu, gpu, options):
    on_gpu(gpu)
    expected, found = train(False), train(True, **options)
    assert len(expected[0]) == 50
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


def test_only_rows_of_later_updates_are_read_again():
    embedding = manyhop.Embedding(10, 4)
    optimizer = manyhop.optim.SGD(embedding, lr=1.0)
    ids = torch.tensor([1, 2, 3, 2])
    ahead, request = embedding.begin(ids, ids.device)
    ahead.rows = torch.zeros(4, 4)
    embedding(torch.tensor([2, 5])).sum().backward()
    optimizer.step()
    with torch.no_grad():
        rows = ahead.finish()
    assert request.source[ids].shape == rows.shape
    assert torch.equal(rows[1], embedding.weight[2])
    assert torch.equal(rows[1], rows[3])
    assert not rows[0].any()
    assert not rows[2].any()


def test_a_loaded_table_replaces_all_rows(tmp_path):
    saved = manyhop.Embedding(NODES, WIDTH, seed=7)
    saved.save(tmp_path / "table")
    data = make_data()
    data.emb = manyhop.Embedding(NODES, WIDTH, seed=1)
    batches = iter(NeighborLoader(data, [5], batch_size=16, num_workers=1, prefetch_factor=8))
    first = next(batches)
    assert not torch.equal(first.emb, saved.weight[first.n_id])
    data.emb.load(tmp_path / "table")
    for batch in batches:
        assert torch.equal(batch.emb, saved.weight[batch.n_id])


def test_types_and_links_and_no_grad():
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["film"].x = torch.randn(50, 2)
    data["person"].num_nodes = 80
    data["person"].emb = people = manyhop.Embedding(80, WIDTH)
    data["person", "in", "film"].edge_index = torch.stack(
        [torch.randint(0, 80, (300,), generator=draw), torch.randint(0, 50, (300,), generator=draw)]
    )
    links = data["person", "in", "film"].edge_index
    loader = LinkNeighborLoader(
        data, [5, 5], edge_label_index=(("person", "in", "film"), links), batch_size=32, neg_sampling="binary"
    )
    with torch.no_grad():
        for batch in loader:
            assert not batch["person"].emb.requires_grad
            assert torch.equal(batch["person"].emb, people.weight[batch["person"].n_id])
            assert "emb" not in batch["film"]
    alone = NeighborLoader(data, [5], input_nodes="film", batch_size=8)(torch.tensor([1, 2]))
    assert alone["person"].emb.requires_grad
    assert torch.equal(alone["person"].emb, people.weight[alone["person"].n_id])


def test_transforms_come_before_the_rows():
    data = make_data()
    data.emb = embedding = manyhop.Embedding(NODES, WIDTH)
    kinds, threads = set(), set()

    def transform(batch):
        kinds.add(type(batch.emb))
        threads.add(threading.current_thread())
        return batch

    for batch in NeighborLoader(data, [5], batch_size=50, transform=transform, num_workers=1):
        assert torch.equal(batch.emb, embedding.weight[batch.n_id])
    assert kinds == {RowsAhead}
    assert threading.current_thread() not in threads


def test_failures():
    data = make_data()
    data.emb = manyhop.Embedding(NODES, WIDTH)
    with pytest.raises(InputError, match="Expected no embedding among the data with pad='auto', got 'emb'"):
        next(iter(NeighborLoader(data, [5], batch_size=50, pad="auto")))
    with pytest.raises(InputError, match=r"Expected batches of Data or HeteroData.*got a tuple"):
        next(iter(NeighborLoader(data, [5], batch_size=50, transform=lambda batch: (batch, 1))))
    data.emb = manyhop.Embedding(NODES // 2, WIDTH)
    with pytest.raises(FeatureError, match=f"Expected indices in \\[0, {NODES // 2}\\) for embedding"):
        list(NeighborLoader(data, [5], batch_size=50))
