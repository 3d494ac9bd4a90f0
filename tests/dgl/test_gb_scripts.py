"""Scripts for DGL's GraphBolt, with one line changed, or none."""

import runpy
from pathlib import Path

import pytest
from gb_datasets import heterogeneous, homogeneous

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="the scripts train with DGL's layers")

SCRIPTS = Path(__file__).parent / "gb_scripts"


@pytest.fixture
def main(request, tmp_path):
    """The function of a script in which one line is another."""
    stock = (SCRIPTS / f"{request.param}.py").read_text()
    changed = stock.replace("import dgl.graphbolt as gb\n", "import manyhop_dgl.graphbolt as gb\n")
    assert sum(a != b for a, b in zip(stock.splitlines(), changed.splitlines(), strict=True)) == 1
    (tmp_path / "script.py").write_text(changed)
    return runpy.run_path(str(tmp_path / "script.py"))["main"]


@pytest.mark.parametrize("main", ["link_prediction"], indirect=True)
@pytest.mark.parametrize("name", ["seeds", "node_pairs"])
def test_link_prediction(main, tmp_path, name):
    assert main(str(homogeneous(tmp_path, name)), 0) > 0.65


@pytest.mark.parametrize("main", ["rgcn"], indirect=True)
def test_heterogeneous(main, tmp_path):
    assert main(str(heterogeneous(tmp_path)), 2) > 0.75


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
