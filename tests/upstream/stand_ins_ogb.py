"""A package ``ogb`` with the datasets and evaluators that scripts of PyG and DGL import, over random graphs."""

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

TASKS = {"ogbn-proteins": 112}  # binary labels per node; elsewhere one label of several classes


class Evaluator:
    """Accuracy, or a stand-in for the area under the curve: scripts only print it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def eval(self, given: dict[str, Any]) -> dict[str, Any]:
        if "y_pred_pos" in given:
            positive, negative = (torch.as_tensor(given[f"y_pred_{k}"]).float() for k in ("pos", "neg"))
            ranks = (negative >= positive.view(-1, 1)).sum(1) + 1
            return {"mrr_list": 1.0 / ranks}
        true, found = (torch.as_tensor(given[f"y_{what}"]).cpu() for what in ("true", "pred"))
        right = true == found.round()
        return {"acc": float(right.float().mean()), "rocauc": float(right.float().mean())}


def split(nodes: int) -> dict[str, Tensor]:
    ids = torch.arange(nodes)
    return {"train": ids[ids % 5 < 3], "valid": ids[ids % 5 == 3], "test": ids[ids % 5 == 4]}


def _pyg_nodes(name: str, root: str = "dataset", transform: Any = None, **options: Any) -> Any:
    import stand_ins_pyg as pyg

    data = pyg.one_graph()
    nodes = data.num_nodes
    data = pyg.Data(x=data.x, edge_index=data.edge_index, y=data.y.view(-1, 1), num_nodes=nodes)
    if name in TASKS:
        del data.x
        data.y = torch.randint(0, 2, (nodes, TASKS[name]))
        data.edge_attr, data.node_species = torch.rand(data.num_edges, 8), torch.zeros(nodes, 1, dtype=torch.long)
    dataset = pyg.StandIn([data], transform)
    dataset.get_idx_split = lambda: split(nodes)
    return dataset


class _DGLNodes:
    """Items are pairs of a graph and its labels."""

    def __init__(self, name: str, root: str = "dataset", **options: Any) -> None:
        import stand_ins_dgl as dgl

        self.name, self.num_classes, self.is_hetero = name, dgl.CLASSES, name == "ogbn-mag"
        if self.is_hetero:
            self._graph = dgl.mag()
            self._labels: Any = {"paper": self._graph.nodes["paper"].data.pop("label").view(-1, 1)}
            del self._graph.nodes["paper"].data["train_mask"], self._graph.nodes["paper"].data["test_mask"]
        else:
            graph = dgl.one_graph()
            self._labels = graph.ndata.pop("label").view(-1, 1)
            if name in TASKS:
                self._labels = torch.randint(0, 2, (graph.num_nodes(), TASKS[name]))
                graph.edata["feat"] = torch.rand(graph.num_edges(), 8)
                graph.ndata["species"] = torch.zeros(graph.num_nodes(), 1, dtype=torch.long)
            for key in ("train_mask", "val_mask", "test_mask"):
                del graph.ndata[key]
            self._graph = graph

    def __getitem__(self, index: int) -> Any:
        return self._graph, self._labels

    def __len__(self) -> int:
        return 1

    def get_idx_split(self) -> dict[str, Any]:
        if self.is_hetero:
            return {part: {"paper": ids} for part, ids in split(self._graph.num_nodes("paper")).items()}
        return split(self._graph.num_nodes())


class _DGLLinks:
    """ogbl-citation2: a directed graph, edges to train on, and edges with negatives to test."""

    def __init__(self, name: str, root: str = "dataset", **options: Any) -> None:
        import stand_ins_dgl as dgl

        self.name, self._graph = name, dgl.papers()

    def __getitem__(self, index: int) -> Any:
        return self._graph

    def get_edge_split(self) -> dict[str, dict[str, Tensor]]:
        source, target = self._graph.edges()
        parts = {part: {"source_node": source[ids], "target_node": target[ids]} for part, ids in split(200).items()}
        for part in ("valid", "test"):
            rows = len(parts[part]["source_node"])
            parts[part]["target_node_neg"] = torch.randint(0, self._graph.num_nodes(), (rows, 20))
        return parts


class Large:
    """MAG240M, which scripts import beside smaller datasets."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise OSError("No stand-in for MAG240M: choose another dataset.")


def activate() -> None:
    """Make the package importable, in place of one that is installed."""
    names: dict[str, dict[str, Any]] = {
        "nodeproppred": {"PygNodePropPredDataset": _pyg_nodes, "DglNodePropPredDataset": _DGLNodes},
        "linkproppred": {"DglLinkPropPredDataset": _DGLLinks},
        "lsc": {"MAG240MDataset": Large, "MAG240MEvaluator": Large},
    }
    package = sys.modules["ogb"] = ModuleType("ogb")
    package.__path__ = []  # type: ignore[attr-defined]
    for name, contents in names.items():
        module = sys.modules[f"ogb.{name}"] = ModuleType(f"ogb.{name}")
        vars(module).update(contents, Evaluator=Evaluator)
        setattr(package, name, module)
