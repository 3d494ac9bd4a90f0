"""Small random graphs in place of PyG's datasets: the same types and attributes, nothing to download."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.utils import to_undirected

NODES, DEGREE, FEATURES, CLASSES = 600, 8, 16, 5
MAG = [
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]


class StandIn(InMemoryDataset):
    """Graphs in memory, with a dataset's interface."""

    def __init__(self, graphs: Sequence[Any], transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__(None, transform)
        self.data, self.slices = self.collate(list(graphs))

    @property
    def num_classes(self) -> int:
        if isinstance(self._data, HeteroData):
            return int(self._data["paper"].y.max()) + 1
        return int(super().num_classes)


def edges(sources: int, targets: int, per_target: int = DEGREE) -> Tensor:
    return torch.stack([torch.randint(0, n, (targets * per_target,)) for n in (sources, targets)])


def masks(nodes: int) -> dict[str, Tensor]:
    part = torch.arange(nodes) % 5
    return {"train_mask": part < 3, "val_mask": part == 3, "test_mask": part == 4}


def one_graph(nodes: int = NODES, classes: int = CLASSES) -> Data:
    """One label per node, and masks: Planetoid, Reddit, Flickr, ..."""
    edge_index = to_undirected(edges(nodes, nodes), num_nodes=nodes)
    y = torch.arange(nodes) % classes
    return Data(x=torch.randn(nodes, FEATURES), edge_index=edge_index, y=y, **masks(nodes))


def mag() -> HeteroData:
    """Papers with features, labels and masks; features of all types, as with preprocess='metapath2vec'."""
    data = HeteroData()
    for name, nodes in {"paper": NODES, "author": 300, "institution": 40, "field_of_study": 50}.items():
        data[name].x = torch.randn(nodes, FEATURES)
    data["paper"].y = torch.arange(NODES) % CLASSES
    data["paper"].year = torch.randint(2010, 2020, (NODES,))
    for name, mask in masks(NODES).items():
        data["paper"][name] = mask
    for edge_type in MAG:
        data[edge_type].edge_index = edges(data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes)
    return data


def movies() -> HeteroData:
    data = HeteroData()
    data["movie"].x, data["user"].num_nodes = torch.randn(200, FEATURES), 300
    rated = edges(300, 200)
    data["user", "rates", "movie"].edge_index = rated
    data["user", "rates", "movie"].edge_label = torch.randint(1, 6, (rated.size(1),))
    data["user", "rates", "movie"].time = torch.arange(rated.size(1))
    return data


def taobao() -> HeteroData:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes, data["category"].num_nodes = 400, 300, 20
    bought = edges(400, 300, 20)
    data["user", "item"].edge_index = bought
    data["user", "item"].time = torch.arange(bought.size(1))
    data["user", "item"].behavior = torch.randint(0, 4, (bought.size(1),))
    data["item", "category"].edge_index = torch.stack([torch.arange(300), torch.arange(300) % 20])
    return data


def ppi_graph() -> Data:
    data = one_graph(200)
    data.y = torch.randint(0, 2, (200, CLASSES)).float()
    return Data(x=data.x, edge_index=data.edge_index, y=data.y)


def in_place_of(make: Callable[[], Any]) -> type:
    """A class that takes a dataset's arguments; only its transforms have an effect."""

    class DataSet(StandIn):
        def __init__(self, root: str | None = None, *args: Any, transform: Any = None, **options: Any) -> None:
            before = options.get("pre_transform") or (lambda data: data)
            made = make()
            super().__init__([before(data) for data in (made if isinstance(made, list) else [made])], transform)

    return DataSet


def activate() -> None:
    """Put the stand-ins where scripts find the datasets."""
    same = in_place_of(one_graph)
    stand_ins = dict.fromkeys(("Planetoid", "Reddit2", "Flickr", "Yelp", "AmazonProducts"), same)
    stand_ins["Reddit"] = in_place_of(lambda: one_graph(4000))  # a script makes 1,500 clusters of it
    stand_ins |= {"OGB_MAG": in_place_of(mag), "MovieLens": in_place_of(movies), "Taobao": in_place_of(taobao)}
    stand_ins["PPI"] = in_place_of(lambda: [ppi_graph() for _ in range(3)])
    for name, stand_in in stand_ins.items():
        stand_in = type(name, (stand_in,), {})
        setattr(torch_geometric.datasets, name, stand_in)
