"""The table of arguments that manyhop adds has all of them, and names the loaders that take them."""

import inspect
import re
from pathlib import Path

import pytest
import torch_geometric.data
import torch_geometric.loader
import torch_geometric.sampler
from torch.utils.data import DataLoader

import manyhop_dgl
import manyhop_pyg

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "arguments.md"
CLASSES = {name: getattr(manyhop_pyg, name) for name in manyhop_pyg.__all__}
LOADERS = [
    name
    for name, value in CLASSES.items()
    if isinstance(value, type) and issubclass(value, DataLoader) and hasattr(torch_geometric.loader, name)
]


def table():
    """Return the rows of the first table: argument -> the cells for PyG, DGL and GraphBolt."""
    first = re.search(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|(.*?)\|(.*?)\|.*\|$", first, re.MULTILINE)
    return {argument: cells for argument, *cells in rows}


def last_table():
    """Return the rows of the last table: argument -> the classes and functions that take it."""
    last = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)[-1]
    return {argument: named(cell) for argument, cell in re.findall(r"^\| `(\w+)` \|(.*?)\|.*\|$", last, re.MULTILINE)}


def parameters(function):
    return inspect.signature(function).parameters


def added(ours, theirs):
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name for name, p in parameters(ours).items() if p.kind not in kinds} - set(parameters(theirs))


def named(cell):
    return set(re.findall(r"`(\w+)`", cell))


@pytest.mark.parametrize(
    "theirs",
    [torch_geometric.sampler.NeighborSampler, torch_geometric.sampler.BidirectionalNeighborSampler,
     torch_geometric.sampler.HGTSampler, torch_geometric.data.FeatureStore, torch_geometric.data.GraphStore],
)  # fmt: skip
def test_samplers_and_stores_of_pyg(theirs):
    name = theirs.__name__
    assert added(CLASSES[name], theirs) == {argument for argument, takers in last_table().items() if name in takers}


@pytest.mark.parametrize("name", LOADERS)
def test_pyg(name):
    loader = CLASSES[name]
    theirs = getattr(torch_geometric.loader, name)
    extra = added(loader, theirs) - {argument for base in theirs.__bases__ for argument in parameters(base)}
    rows = {argument: cell for argument, (cell, _, _) in table().items()}
    of_all = {argument for argument, cell in rows.items() if cell.strip() == "all"}
    assert of_all
    assert extra - of_all == {argument for argument, cell in rows.items() if name in named(cell)}
    assert of_all <= extra or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters(loader).values())


def test_dgl():
    dataloading = pytest.importorskip("dgl.dataloading")
    extra = added(manyhop_dgl.DataLoader, dataloading.DataLoader)
    assert extra == {argument for argument, (_, cell, _) in table().items() if "DataLoader" in named(cell)}
    samplers = ("NeighborSampler", "LaborSampler", "as_edge_prediction_sampler")
    assert all(added(getattr(manyhop_dgl, name), getattr(dataloading, name)) == {"seed"} for name in samplers)


def test_graphbolt():
    griffe = pytest.importorskip("griffe")
    gb = pytest.importorskip("manyhop_dgl.graphbolt")
    folder = Path(pytest.importorskip("dgl").__file__).parent / "graphbolt"
    files = {"DataLoader": "dataloader", "ItemSampler": "item_sampler", "DistributedItemSampler": "item_sampler"}
    hints = {"hints"}  # arguments of GraphBolt without effect
    takers = {name for names in last_table().values() for name in names - set(CLASSES)}
    for name in takers:
        expected = {argument for argument, names in last_table().items() if name in names}
        assert expected <= set(parameters(getattr(gb, name)))
        assert {"placement", "device"} & set(parameters(getattr(gb, name))) <= expected
    assert len(takers) > 4
    for name, file in files.items():
        theirs = griffe.visit(file, folder / f"{file}.py", (folder / f"{file}.py").read_text())[name]
        extra = set(parameters(getattr(gb, name))) - {p.name for p in theirs.parameters}
        expected = {argument for argument, (_, _, cell) in table().items() if name in named(cell)}
        assert extra - hints == expected - {"distributed"}
