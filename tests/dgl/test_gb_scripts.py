"""Scripts for DGL's GraphBolt, with one line changed, or none."""

import runpy
from pathlib import Path

import pytest
from gb_datasets import heterogeneous, homogeneous

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="the scripts train with DGL's layers")

SCRIPTS = Path(__file__).parent / "gb_scripts"


@pytest.fixture
def ours(tmp_path):
    """A script in which one line is another: its path."""

    def ours(name):
        stock = (SCRIPTS / f"{name}.py").read_text()
        changed = stock.replace("import dgl.graphbolt as gb\n", "import manyhop_dgl.graphbolt as gb\n")
        assert sum(a != b for a, b in zip(stock.splitlines(), changed.splitlines(), strict=True)) == 1
        path = tmp_path / f"{name}.py"
        path.write_text(changed)
        return path

    return ours


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_node_classification(ours, folder, num_workers):
    main = runpy.run_path(str(ours("node_classification")))["main"]
    assert main(str(homogeneous(folder, node_name="seed_nodes")), num_workers) > 0.75


@pytest.mark.parametrize("name", ["seeds", "node_pairs"])
def test_link_prediction(ours, folder, name):
    main = runpy.run_path(str(ours("link_prediction")))["main"]
    assert main(str(homogeneous(folder, pair_name=name)), 0) > 0.65


def test_heterogeneous(ours, folder):
    main = runpy.run_path(str(ours("rgcn")))["main"]
    assert main(str(heterogeneous(folder)), 2) > 0.75


def test_install_and_back():
    with pytest.raises(AttributeError, match=r"manyhop_dgl\.graphbolt"):
        _ = dgl.graphbolt.ItemSampler
    before = dict(vars(dgl.graphbolt))
    manyhop_dgl.install()
    try:
        assert dgl.graphbolt.ItemSampler is manyhop_dgl.graphbolt.ItemSampler
        manyhop_dgl.install()
    finally:
        manyhop_dgl.uninstall()
    assert dict(vars(dgl.graphbolt)) == before
