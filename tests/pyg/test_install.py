"""install() and uninstall() in this process."""

import copy
import multiprocessing.spawn
import pickle
import sys
import types

import pytest
import torch
import torch_geometric.loader as loader
import torch_geometric.sampler as sampler
from torch_geometric.data.lightning import datamodule
from torch_geometric.nn.models import GraphSAGE, basic_gnn

import manyhop_pyg
from manyhop_pyg import install, uninstall

try:
    from torch_geometric.nn.models import gpse
except ImportError:  # it came with PyG 2.7
    gpse = None

LOADERS = ("NodeLoader", "NeighborLoader", "LinkLoader", "LinkNeighborLoader", "HGTLoader", "ShaDowKHopSampler",
           "GraphSAINTRandomWalkSampler", "ClusterData", "ClusterLoader")  # fmt: skip
NEW = ("BidirectionalNeighborSampler",) if hasattr(sampler, "BidirectionalNeighborSampler") else ()  # since PyG 2.7
SAMPLERS = ("NeighborSampler", *NEW, "HGTSampler")
FILES = {"NodeLoader": "node_loader", "NeighborLoader": "neighbor_loader", "LinkLoader": "link_loader",
         "LinkNeighborLoader": "link_neighbor_loader", "HGTLoader": "hgt_loader",
         "ShaDowKHopSampler": "shadow",
         "GraphSAINTRandomWalkSampler": "graph_saint", "ClusterData": "cluster", "ClusterLoader": "cluster",
         "NeighborSampler": "neighbor_sampler", "BidirectionalNeighborSampler": "neighbor_sampler",
         "HGTSampler": "hgt_sampler"}  # fmt: skip
PYG = {name: getattr(loader, name) for name in LOADERS} | {name: getattr(sampler, name) for name in SAMPLERS}


@pytest.fixture
def installed():
    install()
    yield
    uninstall()


def snapshot():
    """Everything that modules hold under PyG's and our names."""
    classes = {id(c) for c in [*PYG.values(), *(getattr(manyhop_pyg, name) for name in PYG)]}
    return {
        (module, name): value
        for module, found in list(sys.modules.items())
        for name, value in list(getattr(found, "__dict__", {}).items())
        if id(value) in classes
    } | {"spawn": multiprocessing.spawn.get_preparation_data}


@pytest.fixture
def user_module():
    """A module that has imported PyG's names before."""
    module = types.ModuleType("eco_user")
    module.NeighborLoader = module.Alias = PYG["NeighborLoader"]
    module.LinkLoader = PYG["LinkLoader"]
    exec("class Mine(LinkLoader):\n    def __init__(self, *a, **k):\n        LinkLoader.__init__(self, *a, **k)",
         module.__dict__)  # fmt: skip
    module.Mine.__module__ = "eco_user"
    sys.modules["eco_user"] = module
    yield module
    del sys.modules["eco_user"]


def test_names_and_back(user_module):
    install()
    uninstall()  # of modules that other tests have made meanwhile
    before = snapshot()
    for _ in range(2):
        install()
        install()
        for name in LOADERS:
            ours = getattr(manyhop_pyg, name)
            assert getattr(loader, name) is ours
            assert getattr(sys.modules[f"torch_geometric.loader.{FILES[name]}"], name) is ours
        for name in SAMPLERS:
            ours = getattr(manyhop_pyg, name)
            assert getattr(sampler, name) is ours
            assert getattr(sys.modules[f"torch_geometric.sampler.{FILES[name]}"], name) is ours
        assert datamodule.NodeLoader is manyhop_pyg.NodeLoader
        assert datamodule.LinkLoader is manyhop_pyg.LinkLoader
        assert datamodule.NeighborSampler is manyhop_pyg.NeighborSampler
        if gpse is not None:
            assert gpse.NeighborLoader is manyhop_pyg.NeighborLoader
        assert user_module.NeighborLoader is user_module.Alias is manyhop_pyg.NeighborLoader
        assert globals()["PYG"]["NeighborLoader"] is not manyhop_pyg.NeighborLoader
        assert loader.NeighborSampler is not manyhop_pyg.NeighborSampler  # PyG's old one of edge_index
        uninstall()
        assert snapshot() == before
    uninstall()
    assert snapshot() == before


def test_bases_stay(user_module, data, installed):
    assert user_module.LinkLoader is PYG["LinkLoader"]
    assert user_module.Mine.__bases__ == (PYG["LinkLoader"],)
    mine = user_module.Mine(data, sampler.NeighborSampler(data, [2]), data.edge_index[:, :8], batch_size=4)
    assert next(iter(mine)).edge_label_index.shape == (2, 4)
    assert manyhop_pyg.NeighborLoader.__mro__.index(PYG["NeighborLoader"])
    assert isinstance(loader.NeighborLoader(data, [2]), PYG["NeighborLoader"])


def test_old_classes_are_still_accepted(data):
    class Old(loader.NeighborLoader):
        pass

    install()
    try:
        assert basic_gnn.NeighborLoader is PYG["NeighborLoader"]
        old = Old(data, [-1], batch_size=20)
        assert type(old.node_sampler) is manyhop_pyg.NeighborSampler  # no pyg-lib or torch-sparse is needed
        model = GraphSAGE(4, 8, num_layers=1, out_channels=3).eval()
        ours = loader.NeighborLoader(data, [-1], batch_size=20)
        whole = model(data.x, data.edge_index)
        for given in (old, ours):
            torch.testing.assert_close(model.inference(given), whole)
    finally:
        uninstall()


def test_modules_that_come_later(data):
    install()
    late = types.ModuleType("eco_late")
    pyg_late = types.ModuleType("torch_geometric.eco_late")
    own = types.ModuleType("eco_own")
    own.NeighborLoader = PYG["NeighborLoader"]
    names = {"eco_late": late, "torch_geometric.eco_late": pyg_late, "eco_own": own, "eco_none": None}
    sys.modules.update(names)
    try:
        for module in (late, pyg_late):
            exec("from torch_geometric.loader import NeighborLoader", module.__dict__)
            assert module.NeighborLoader is manyhop_pyg.NeighborLoader
        install()
        assert own.NeighborLoader is manyhop_pyg.NeighborLoader
        own.NeighborLoader = int
        uninstall()
        assert late.NeighborLoader is manyhop_pyg.NeighborLoader
        assert pyg_late.NeighborLoader is PYG["NeighborLoader"]
        assert own.NeighborLoader is int
    finally:
        uninstall()
        for name in names:
            del sys.modules[name]


def test_one_who_replaced_it_after_us_is_left_alone(monkeypatch):
    before = multiprocessing.spawn.get_preparation_data
    install()
    ours = multiprocessing.spawn.get_preparation_data
    assert "manyhop_pyg" in ours("name")
    monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", lambda name: ours(name))
    theirs = multiprocessing.spawn.get_preparation_data
    uninstall()
    assert multiprocessing.spawn.get_preparation_data is theirs
    assert theirs("name") == before("name")
    install()
    assert "manyhop_pyg" in theirs("name")
    monkeypatch.undo()
    uninstall()
    assert multiprocessing.spawn.get_preparation_data is before


def test_what_a_new_process_gets():
    install()
    sent = pickle.dumps(multiprocessing.spawn.get_preparation_data("name")["manyhop_pyg"])
    uninstall()
    try:
        assert loader.NeighborLoader is PYG["NeighborLoader"]
        pickle.loads(sent)
        assert loader.NeighborLoader is manyhop_pyg.NeighborLoader
    finally:
        uninstall()


def test_loaders_made_while_installed(data, hetero, installed):
    made = [
        loader.NeighborLoader(data, num_neighbors=[3, 3], batch_size=8, num_workers=2),
        loader.LinkNeighborLoader(data, [3, 3], batch_size=8, neg_sampling="binary"),
        loader.HGTLoader(hetero, [4, 4], "paper", batch_size=8),
        loader.NodeLoader(data, sampler.NeighborSampler(data, [3]), batch_size=8),
        loader.LinkLoader(data, sampler.NeighborSampler(data, [3]), batch_size=8),
    ]
    for each in made:
        assert type(each).__module__.startswith("manyhop_pyg")
        assert repr(each).startswith(f"{type(each).__name__}(")
        for other in (copy.copy(each), pickle.loads(pickle.dumps(each))):
            assert type(other) is type(each)
            assert len(list(other)) == len(other)
