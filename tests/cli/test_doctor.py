"""What the doctor finds, also where packages are missing, broken or too old."""

import importlib

import numba
import pytest

from manyhop.hints import pip_install
from manyhop_tools.doctor import report
from manyhop_tools.doctor.report import examine, installed_version


def finding(topic):
    (found,) = (f for f in examine().findings if f.topic == topic)
    return found


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that a distribution has another version, or (None) is not installed."""

    def pretend(version, *distributions):
        def version_of(names):
            return version if set(names) & set(distributions) else installed_version(names)

        monkeypatch.setattr(report, "installed_version", version_of)

    return pretend


def test_missing_pyg_names_the_extra(pretend):
    pretend(None, "torch_geometric")
    assert finding("PyG").state == "missing"
    assert pip_install("pyg") in finding("PyG").text
    assert examine().healthy


@pytest.mark.parametrize("package", ["torch", "numpy", "numba"])
def test_missing_essentials_are_broken(pretend, package):
    pretend(None, package)
    assert finding(package).state == "broken"
    assert f"pip install '{package}" in finding(package).text
    assert not examine().healthy
    assert "!!  " + package in str(examine())


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        ("2.5.1", "broken", "manyhop needs 2.6 or later; pip install 'torch>=2.6'"),
        ("2.6.0", "ok", "2.6.0"),
        ("2.13.0+cpu", "ok", "2.13.0+cpu"),
        ("2.16.0a0+git", "ok", "(newer than 2.15, the newest that was tested)"),
        ("3.0", "ok", "(newer than 2.15, the newest that was tested)"),
    ],
)
def test_versions_of_torch(pretend, version, state, text):
    pretend(version, "torch")
    assert finding("torch").state == state
    assert finding("torch").text.endswith(text)


def test_a_package_that_cannot_be_imported(monkeypatch):
    real = importlib.import_module

    def import_module(name):
        if name == "numba":
            raise OSError("libsomething.so: not found")
        return real(name)

    monkeypatch.setattr(report.importlib, "import_module", import_module)
    assert finding("numba").state == "broken"
    assert "libsomething.so: not found" in finding("numba").text
    assert all(f.topic != "kernels" for f in examine().findings)


def test_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # what NUMBA_CACHE_DIR sets
    assert finding("kernels").text.startswith("not compiled yet")
    assert str(tmp_path) in finding("kernels").text
    (folder,) = tmp_path.glob("graph_*")
    (folder / "a.py311.nbi").touch()
    assert finding("kernels").text.startswith("1 compiled functions; cache: ")
