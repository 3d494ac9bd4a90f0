"""The wheel: small, complete, and enough by itself in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("plugin", "adapters")
SCRIPT = """
import importlib, pkgutil, sys
import manyhop, manyhop_dgl, manyhop_pyg, torch
from torch_geometric.data import Data

for package in (manyhop, manyhop_dgl, manyhop_pyg):
    assert package.__file__.startswith(sys.prefix), package.__file__
    if package is manyhop_dgl and "dgl" in manyhop_dgl.compat.unavailable():
        continue
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)
data = Data(x=torch.arange(6.0), edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]))
(batch,) = manyhop_pyg.NeighborLoader(data, [1, 1], input_nodes=torch.tensor([5]), batch_size=1)
print(batch.n_id.tolist(), batch.x.tolist())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:  # a copy: building leaves files beside the sources
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.nbi", "*.nbc")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*pip, "-w", folder, folder / "source"], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_size_and_contents(wheel):
    assert wheel.stat().st_size < 1_500_000
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
        assert any(name.endswith("/entry_points.txt") for name in archive.namelist())
    ours = {
        str(path.relative_to(ROOT / source))
        for source in SOURCES
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in (ROOT / source).rglob(pattern)
    }
    assert files == ours
    assert {f"{package}/py.typed" for package in ("manyhop", "manyhop_dgl", "manyhop_pyg")} <= files
    assert {"Requires-Python: >=3.11", "Provides-Extra: pyg", "Provides-Extra: dgl"} <= set(metadata.splitlines())


@pytest.mark.slow
def test_it_runs_in_an_environment_of_its_own(wheel, tmp_path):
    """Its dependencies are those of this environment, seen through a path file; its own modules come from the wheel."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel]
    subprocess.run(install, check=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # Path files inside that folder are not followed: the editable install of this checkout stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # another checkout's

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(python, "-c", SCRIPT) == "[5, 4, 3] [5.0, 4.0, 3.0]\n"
    doctor = run(tmp_path / "env" / "bin" / "manyhop", "doctor")
    assert str(packages) in doctor
    assert "manyhop can work here." in doctor
    small = ("--nodes", "500", "--edges", "2000", "--features", "2", "--batches", "1", "--rounds", "1")
    assert "pyg  cpu     manyhop" in run(tmp_path / "env" / "bin" / "manyhop", "bench", *small)
