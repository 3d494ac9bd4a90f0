"""Small programs for GraphBolt and ``dgl.sparse``, and what each returns.

    python graphbolt_programs.py {dgl,manyhop} FOLDER

runs all of them with DGL's own classes or with manyhop's, and writes ``FOLDER/{dgl,manyhop}.json``: the result by the
name of the program. Nothing in them is random: fanouts are unlimited, and items are not shuffled. ``FOLDER/datasets``
has the datasets of ``stand_ins_graphbolt``.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if sys.argv[1:2] == ["manyhop"]:
    import manyhop_dgl.graphbolt as gb
else:
    import dgl.graphbolt as gb
import dgl.sparse as dglsp

NODES, EDGES = 30, 200
TYPES = {"a": 0, "b": 1, "c": 2}
OFFSETS = torch.tensor([0, 10, 25, 30])
EDGE_TYPES = ["a:r0:a", "a:r1:b", "b:r2:a", "c:r3:b", "b:r4:c"]
GRAPH = ["num_nodes", "num_edges", "csc_indptr", "indices", "node_type_offset", "type_per_edge", "edge_attributes"]
PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    PROGRAMS[name] = lambda: function(*arguments)


def random(*shape: int, high: int = 100, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def graph(typed: bool, dtype: torch.dtype, ids: bool) -> Any:
    """Times and a mask of edges, times of nodes; ``ids``: also original edge ids."""
    kinds = random(EDGES, high=len(EDGE_TYPES), seed=1) if typed else torch.zeros(EDGES, dtype=torch.int64)
    ends = torch.stack([random(EDGES, high=NODES, seed=2), random(EDGES, high=NODES, seed=3)])
    if typed:
        for k, name in enumerate(EDGE_TYPES):
            for end, node_type in enumerate((name[0], name[-1])):
                begin, stop = OFFSETS[TYPES[node_type] : TYPES[node_type] + 2].tolist()
                ends[end, kinds == k] = begin + ends[end, kinds == k] % (stop - begin)
    order = torch.argsort(ends[1] * len(EDGE_TYPES) + kinds, stable=True)
    (sources, targets), kinds = ends[:, order], kinds[order]
    edge_data = {"time": random(EDGES, seed=4), "mask": random(EDGES, high=2, seed=5).bool()}
    if ids:
        edge_data[gb.ORIGINAL_EDGE_ID] = order
    types = {"node_type_offset": OFFSETS, "type_per_edge": kinds, "node_type_to_id": TYPES}
    types |= {"edge_type_to_id": {name: k for k, name in enumerate(EDGE_TYPES)}}
    return gb.fused_csc_sampling_graph(
        torch.searchsorted(targets, torch.arange(NODES + 1)),
        sources.to(dtype),
        node_attributes={"time": random(NODES, seed=6)},
        edge_attributes=edge_data,
        **(types if typed else {}),
    )


SEEDS: dict[bool, dict[str, Any]] = {
    False: {"all": torch.arange(NODES), "some": torch.tensor([3, 28, 0]), "twice": torch.tensor([3, 5, 3])},
    True: {
        "one type": {"a": torch.arange(10)},
        "types": {"a": torch.tensor([4, 1]), "b": torch.tensor([14, 0, 3]), "c": torch.arange(5)},
    },
}


def one_layer(typed: bool, dtype: torch.dtype, ids: bool, seeds: str, method: str, prob: str | None) -> Any:
    g, nodes = graph(typed, dtype, ids), SEEDS[typed][seeds]
    nodes = {t: some.to(dtype) for t, some in nodes.items()} if typed else nodes.to(dtype)
    return getattr(g, method)(nodes, torch.tensor([-1]), False, prob)


def earlier(typed: bool, seeds: str, node: str | None, edge: str | None) -> Any:
    nodes = SEEDS[typed][seeds]
    times = {k: v * 7 + 20 for k, v in nodes.items()} if typed else nodes * 3 + 10
    names = {"node_timestamp_attr_name": node, "edge_timestamp_attr_name": edge}
    layer = graph(typed, torch.int64, ids=True).temporal_sample_neighbors(nodes, times, torch.tensor([-1]), **names)
    ids = layer.original_edge_ids  # of a node, DGL's are in the graph's order, manyhop's by time
    return {kind: sorted(some.tolist()) for kind, some in (ids if typed else {"": ids}).items()}


for typed, dtype, ids in product((False, True), (torch.int64, torch.int32), (False, True)):
    place = f"graph {'typed' if typed else 'plain'} {dtype} {ids}"
    program(place, lambda *facts: [getattr(graph(*facts), name) for name in GRAPH], typed, dtype, ids)
    for seeds, method in product(SEEDS[typed], ("sample_neighbors", "sample_layer_neighbors")):
        for prob in (None, "mask"):
            program(f"{place} {method} {seeds} {prob}", one_layer, typed, dtype, ids, seeds, method, prob)
for typed, node, edge in product((False, True), (None, "time"), (None, "time")):
    for seeds in SEEDS[typed]:
        program(f"earlier {typed} {node} {edge} {seeds}", earlier, typed, seeds, node, edge)

PAIRS = torch.stack([random(12, high=10, seed=7), random(12, high=15, seed=8)], dim=1)
SETS: dict[str, Callable[[], Any]] = {
    "number": lambda: gb.ItemSet(10, names="seed_nodes"),
    "nodes": lambda: gb.ItemSet(torch.arange(5, 15), names="seed_nodes"),
    "labels": lambda: gb.ItemSet((torch.arange(5, 15), torch.arange(10)), names=("seed_nodes", "labels")),
    "pairs": lambda: gb.ItemSet(PAIRS, names="seeds"),
    "seeds": lambda: gb.ItemSet((PAIRS, torch.arange(12)), names=("seeds", "labels")),
    "types": lambda: gb.ItemSetDict({t: gb.ItemSet(torch.arange(4), names="seed_nodes") for t in "ab"}),
    "typed pairs": lambda: gb.ItemSetDict({"a:r1:b": gb.ItemSet(PAIRS, names="seeds")}),
}


def batches(items: str, size: int, drop_last: bool) -> Any:
    return list(gb.ItemSampler(SETS[items](), batch_size=size, drop_last=drop_last))


def store(typed: bool) -> Any:
    tables = {("node", t, "x"): torch.arange(60.0).view(30, 2) for t in (TYPES if typed else [None])}
    tables |= {("edge", t, "w"): torch.arange(float(EDGES)).view(-1, 1) for t in (EDGE_TYPES if typed else [None])}
    return gb.BasicFeatureStore({key: gb.TorchBasedFeature(table) for key, table in tables.items()})


def pipeline(items: str, method: str, layers: int, exclude: bool) -> Any:
    typed = "type" in items
    pipe = gb.ItemSampler(SETS[items](), batch_size=4)
    pipe = getattr(pipe, method)(graph(typed, torch.int64, ids=True), [torch.tensor([-1])] * layers)
    if exclude:
        pipe = pipe.transform(gb.exclude_seed_edges)
    nodes, edges = ({"a": ["x"]}, {"a:r1:b": ["w"]}) if typed else (["x"], ["w"])
    pipe = pipe.fetch_feature(store(typed), node_feature_keys=nodes, edge_feature_keys=edges)
    found = list(gb.DataLoader(pipe))
    edges = [[edges_of(block) for block in minibatch.blocks] for minibatch in found]
    names = (*MINIBATCH, "compacted_seeds") if "seeds" in SETS[items]().names else MINIBATCH
    return edges, [{name: values(getattr(one, name)) for name in names} for one in found]


def edges_of(block: Any) -> Any:
    return {":".join(kind): values(block.edges(etype=kind)) for kind in block.canonical_etypes}


def values(nested: Any) -> Any:
    """Without dtypes: all layers that manyhop samples in one call have int64 ids."""
    if nested is None or isinstance(nested, dict):
        return nested and {str(key): values(one) for key, one in nested.items()}
    return [values(one) for one in nested] if isinstance(nested, (list, tuple)) else nested.tolist()


for items in SETS:
    for size, drop_last in product((3, 4, 20), (False, True)):
        program(f"batches {items} {size} {drop_last}", batches, items, size, drop_last)
    for method, layers in product(("sample_neighbor", "sample_layer_neighbor"), (1, 2)):
        for exclude in (False, True) if "pairs" in items else (False,):
            program(f"pipeline {items} {method} {layers} {exclude}", pipeline, items, method, layers, exclude)


def dataset(name: str, folder: Path) -> Any:
    found = gb.OnDiskDataset(str(folder / name)).load()
    sets = [[list(part) for part in (task.train_set, task.validation_set, task.test_set)] for task in found.tasks]
    g = found.graph
    columns = [sorted(g.indices[a:b].tolist()) for a, b in pairwise(g.csc_indptr.tolist())]
    kinds = sorted(g.num_nodes) if isinstance(g.num_nodes, dict) else [None]
    features = [found.feature.read("node", kind, "feat") for kind in kinds]
    return found.dataset_name, g.num_nodes, g.num_edges, columns, features, sets, [t.metadata for t in found.tasks]


def updated(ids: Tensor | None) -> Any:
    feature = gb.TorchBasedFeature(torch.arange(12.0).view(6, 2))
    feature.update(torch.full((6 if ids is None else len(ids), 2), 9.0), ids)
    return feature.read(), feature.read(torch.tensor([5, 0, 5])), feature.size()


program("feature", updated, None)
program("feature rows", updated, torch.tensor([2, 4]))
for function, arguments in {
    "etype_str_to_tuple": ("a:r:b",),
    "unique_and_compact": ([torch.tensor([4, 2, 4]), torch.tensor([9, 2])],),
}.items():
    program(function, lambda function, arguments: getattr(gb, function)(*arguments), function, arguments)


def matrix(function: Callable[[Any], Any]) -> Any:
    rows, columns = random(2, 40, high=8, seed=9).unique(dim=1)
    a = dglsp.spmatrix(torch.stack([rows, columns]), torch.arange(1.0, len(rows) + 1), shape=(8, 8))
    found = function(a)
    return (found.to_dense(), found.shape) if isinstance(found, dglsp.SparseMatrix) else found


for name, operator in {
    "spmm": lambda a: a @ torch.arange(16.0).view(8, 2),
    "spspmm": lambda a: a @ a.T,
    "add": lambda a: a + a,
    "sum": lambda a: a.sum(dim=1),
    "max": lambda a: a.smax(dim=0),
    "softmax": lambda a: a.softmax(),
    "sddmm": lambda a: dglsp.sddmm(a, torch.arange(16.0).view(8, 2), torch.arange(16.0).view(2, 8)),
    "coalesce": lambda a: a.coalesce(),
    "csc": lambda a: a.csc(),
    "select": lambda a: a.index_select(1, torch.tensor([3, 0])),
}.items():
    program(f"sparse {name}", matrix, operator)


def plain(value: Any) -> Any:
    """As JSON has it; tensors with their dtype."""
    if isinstance(value, Tensor):
        return {str(value.dtype): value.tolist()}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, gb.MiniBatch):  # seed nodes have two names, of which DGL 2.1 knows one at a time
        named = {field: getattr(value, field) for field in ITEMS}
        named["seeds"] = named["seeds"] if named["seeds"] is not None else value.seed_nodes
        return plain({name: one for name, one in named.items() if one is not None})
    if isinstance(value, gb.CSCFormatBase):
        return plain([value.indptr, value.indices])
    if hasattr(value, "sampled_csc"):
        return plain({name: getattr(value, name) for name in SUBGRAPH})
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


SUBGRAPH = ("sampled_csc", "original_row_node_ids", "original_column_node_ids", "original_edge_ids")
MINIBATCH = ("input_nodes", "node_features", "edge_features", "labels")
ITEMS = ("seeds", "labels", "indexes")


def result(function: Callable[[], Any]) -> Any:
    try:
        return plain(function())
    except Exception:  # kinds and wordings of errors differ by intention
        return "raises an error"


def main() -> None:
    folder = Path(sys.argv[2])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for path in sorted((folder / "datasets").iterdir()):
        program(f"dataset {path.name}", dataset, path.name, folder / "datasets")
    found = {name: result(function) for name, function in PROGRAMS.items()}
    (folder / f"{sys.argv[1]}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
