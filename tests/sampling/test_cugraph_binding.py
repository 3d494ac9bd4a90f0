"""Loading pylibcugraph and two modules of raft-dask without the packages that import Dask: from packages made up."""

import sys

import pytest

from manyhop.errors import MissingExtraError
from manyhop_cugraph import binding
from manyhop_cugraph.binding import num_rows

FILES = {
    "raft_dask/__init__.py": "import raft_dask.loud\nraise ImportError('Dask')",
    "raft_dask/loud.py": "",
    "raft_dask/common/__init__.py": "from .comms import Comms\nraise ImportError('UCXX')",
    "raft_dask/common/nccl.py": "class nccl: ...",
    "raft_dask/common/comms_utils.py": "def inject_comms_on_handle_coll_only(*args): ...",
    "pylibcugraph/__init__.py": "from raft_dask.common.nccl import nccl",
    "libraft/__init__.py": "loaded = []\ndef load_library(): loaded.append(1)",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_no_package_of_raft_dask_runs(packages):
    assert binding.is_installed()
    plc, (nccl, inject) = binding.pylibcugraph(), binding.communication()
    assert plc.nccl is nccl
    assert inject.__name__ == "inject_comms_on_handle_coll_only"
    assert {name for name in sys.modules if name.startswith("raft_dask")} == {
        "raft_dask.common.nccl",
        "raft_dask.common.comms_utils",
    }
    assert sys.modules["libraft"].loaded
    with pytest.raises(ImportError, match="Dask"):
        __import__("raft_dask")  # whoever wants Dask gets all of it


def test_a_module_that_cannot_be_loaded(packages):
    (packages / "raft_dask/common/nccl.py").write_text("raise ImportError('libnccl.so.2')")
    with pytest.raises(MissingExtraError, match=r"cannot be loaded \(libnccl.so.2\).*--no-deps raft-dask-cu"):
        binding.communication()


def test_nothing_is_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingExtraError, match="'pylibcugraph', which is not installed"):
        binding.communication()


def test_grids_are_as_square_as_they_can_be():
    assert [num_rows(n) for n in (1, 2, 4, 6, 7, 8, 12, 16)] == [1, 1, 2, 2, 1, 2, 3, 4]
