"""Loaders where features, or all of the data, lie on a GPU."""

import pytest
import torch
from helpers_pyg import all_same, check_batch
from torch_geometric.loader import PrefetchLoader

from manyhop_pyg import LinkNeighborLoader, NeighborLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("names", [("x", "y"), ()])
def test_the_batch_lies_where_the_data_lies(data, workers, names):
    expected = list(NeighborLoader(data, [3, 2], batch_size=8, seed=1))
    data = data.clone().to("cuda", *names)
    loader = NeighborLoader(data, [3, 2], batch_size=8, seed=1, num_workers=workers)
    assert loader.filter_per_worker is False
    batches = list(loader)
    for batch in batches:
        assert batch.x.is_cuda
        assert batch.edge_index.is_cuda == (names == ())
        assert batch.train_mask.is_cuda == (names == ())
        assert not batch.n_id.is_cuda
    assert all_same(expected, [b.cpu() for b in batches])


def test_links_on_the_gpu(data):
    data = data.to("cuda")
    for batch in LinkNeighborLoader(data, [3], edge_label=torch.ones(300), neg_sampling="binary", batch_size=50):
        assert batch.x.is_cuda
        check_batch(batch.cpu(), data.clone().cpu())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_pinned_memory(data, workers, filter_per_worker):
    data.x = torch.randn(60, 3000)
    loader = NeighborLoader(
        data, [3, 2], batch_size=8, num_workers=workers, pin_memory=True, filter_per_worker=filter_per_worker
    )
    for batch in loader:
        assert batch.x.is_pinned()
        assert batch.edge_index.is_pinned() or batch.num_edges == 0
        check_batch(batch, data)


def test_prefetching_to_the_gpu(data):
    loader = NeighborLoader(data, [3, 2], batch_size=8, num_workers=2, seed=1)
    batches = list(PrefetchLoader(loader))
    assert all(b.x.is_cuda for b in batches)
    assert all_same(list(NeighborLoader(data, [3, 2], batch_size=8, seed=1)), [b.cpu() for b in batches])
