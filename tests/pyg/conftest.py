"""Small graphs for the tests of the PyG adapter."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with (
    warnings.catch_warnings()
):  # where torch-sparse is installed, PyG imports it, and it uses deprecated parts of torch
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData


@pytest.fixture
def data() -> Data:
    """60 nodes, 300 edges with parallel ones, self loops and isolated nodes (50 to 59)."""
    g = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 50, (2, 300), generator=g)
    return Data(
        x=torch.randn(60, 4, generator=g),
        y=torch.randint(0, 3, (60,), generator=g),
        train_mask=torch.rand(60, generator=g) < 0.5,
        edge_index=edge_index,
        edge_attr=torch.arange(300).view(-1, 1) * 1.0,
        edge_weight=torch.rand(300, generator=g),
        time=torch.randint(0, 20, (60,), generator=g),
        edge_time=torch.randint(0, 20, (300,), generator=g),
        name="small",
    )


@pytest.fixture
def hetero() -> HeteroData:
    """Papers, authors and fields; fields have no edges into them but for one type, venues have none at all."""
    g = torch.Generator().manual_seed(2)
    data = HeteroData(name="typed")
    data["paper"].x = torch.randn(40, 3, generator=g)
    data["paper"].y = torch.arange(40)
    data["author"].x = torch.randn(30, 5, generator=g)
    data["field"].num_nodes = 6
    data["venue"].x = torch.randn(4, 2, generator=g)

    def edges(n_src: int, n_dst: int, n: int) -> torch.Tensor:
        return torch.stack([torch.randint(0, n_src, (n,), generator=g), torch.randint(0, n_dst, (n,), generator=g)])

    data["author", "writes", "paper"].edge_index = edges(30, 40, 120)
    data["author", "writes", "paper"].edge_attr = torch.arange(120)
    data["paper", "rev_writes", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    data["paper", "cites", "paper"].edge_index = edges(40, 40, 150)
    data["paper", "cites", "paper"].edge_weight = torch.rand(150, generator=g)
    data["paper", "has", "field"].edge_index = edges(40, 6, 50)
    return data


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Loaders take the way of GPUs once it is called; ``on_gpu(False)`` ends that."""
    from grouped import on_stand_in

    return on_stand_in(monkeypatch)


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Callable[..., dict[str, Any]]:
    """The same, and on a GPU: the result has to be passed to the loader."""
    from grouped import StandIn, on_cuda

    StandIn.groups, StandIn.threads = [], set()
    return on_cuda if request.param == "cuda" else request.getfixturevalue("on_gpu")
