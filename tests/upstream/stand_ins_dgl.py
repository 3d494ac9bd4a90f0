"""Small random graphs in place of DGL's datasets: the same types and data, nothing to download."""

from collections.abc import Callable
from typing import Any

import dgl
import dgl.data
import torch

NODES, DEGREE, FEATURES, CLASSES = 600, 8, 128, 5
MAG = [
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
]


def pairs(sources: int, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = targets * DEGREE
    return torch.randint(0, sources, (count,)), torch.randint(0, targets, (count,))


def label(frame: Any, nodes: int) -> None:
    part = torch.arange(nodes) % 5
    frame["label"] = torch.arange(nodes) % CLASSES
    frame["train_mask"], frame["val_mask"], frame["test_mask"] = part < 3, part == 3, part == 4


def one_graph() -> Any:
    graph = dgl.to_bidirected(dgl.graph(pairs(NODES, NODES), num_nodes=NODES))
    graph.ndata["feat"] = torch.randn(NODES, FEATURES)
    label(graph.ndata, NODES)
    return graph


def papers() -> Any:
    """Directed, without loops and pairs of edges that are reverses of each other."""
    ends = torch.stack(pairs(NODES, NODES))
    graph = dgl.to_simple(dgl.graph(tuple(ends[:, ends[0] > ends[1]]), num_nodes=NODES))
    graph.ndata["feat"] = torch.randn(NODES, FEATURES)
    return graph


def mag() -> Any:
    """Papers with features, labels and masks."""
    nodes = {"paper": NODES, "author": 300, "institution": 40, "field_of_study": 50}
    graph = dgl.heterograph({(s, e, t): pairs(nodes[s], nodes[t]) for s, e, t in MAG}, num_nodes_dict=nodes)
    graph.nodes["paper"].data["feat"] = torch.randn(NODES, FEATURES)
    label(graph.nodes["paper"].data, NODES)
    del graph.nodes["paper"].data["val_mask"]
    return graph


def knowledge() -> Any:
    """Typed nodes without features, an edge type for each direction, no edge twice: AIFB, MUTAG, BGS, AM."""
    nodes = {"Personen": 200, "Projekte": 100, "Gruppen": 50}
    types = [("Personen", "works", "Projekte"), ("Projekte", "in", "Gruppen"), ("Personen", "knows", "Personen")]
    edges = {}
    for source, name, target in types:
        there, back = torch.stack(pairs(nodes[source], nodes[target])).unique(dim=1)
        edges[source, name, target], edges[target, f"rev-{name}", source] = (there, back), (back, there)
    graph = dgl.heterograph(edges, num_nodes_dict=nodes)
    label(graph.nodes["Personen"].data, 200)
    graph.nodes["Personen"].data["labels"] = graph.nodes["Personen"].data["label"]
    return graph


def triples() -> Any:
    """One node type, relations as edge data: FB15k-237."""
    graph = dgl.graph(pairs(NODES, NODES), num_nodes=NODES)
    graph.edata["etype"] = torch.randint(0, 4, (graph.num_edges(),))
    part = torch.arange(graph.num_edges()) % 5
    for name, mask in {"train": part < 3, "val": part == 3, "test": part == 4}.items():
        graph.edata[f"{name}_mask"] = graph.edata[f"{name}_edge_mask"] = mask
    graph.ndata["ntype"] = torch.zeros(NODES, dtype=torch.long)
    return graph


class StandIn:
    """A dataset of one graph; takes any arguments."""

    make: Callable[[], Any] = staticmethod(one_graph)
    num_classes, num_rels, num_nodes, predict_category = CLASSES, 4, NODES, "Personen"

    def __init__(self, *args: Any, transform: Callable[[Any], Any] | None = None, **options: Any) -> None:
        graph = type(self).make()
        self._graph = graph if transform is None else transform(graph)
        self.name = type(self).__name__

    @property
    def graph(self) -> Any:
        return self._graph

    def __getitem__(self, index: int) -> Any:
        return self._graph

    def __len__(self) -> int:
        return 1


def activate() -> None:
    """Put the stand-ins where scripts find the datasets."""
    makers: dict[str, Callable[[], Any]] = {}
    makers |= dict.fromkeys(("CoraFullDataset", "CoraGraphDataset", "RedditDataset", "FlickrDataset"), one_graph)
    makers |= dict.fromkeys(("YelpDataset", "PubmedGraphDataset", "CiteseerGraphDataset"), one_graph)
    makers |= dict.fromkeys(("AIFBDataset", "MUTAGDataset", "BGSDataset", "AMDataset"), knowledge)
    makers |= {"FB15k237Dataset": triples}
    modules = [dgl.data, *(vars(dgl.data).get(name) for name in ("rdf", "knowledge_graph", "citation_graph"))]
    for name, make in makers.items():
        stand_in = type(name, (StandIn,), {"make": staticmethod(make)})
        for module in modules:
            if hasattr(module, name):
                setattr(module, name, stand_in)
