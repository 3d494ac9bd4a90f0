"""What an import brings along."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import manyhop

BLOCK = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({blocked!r}))  # importing one of these raises ImportError
"""
ENGINE = """
import manyhop, manyhop_tools.cli, manyhop.errors, manyhop.features, manyhop.graph, manyhop.loading
import manyhop.loading.pipeline, manyhop.sampling
"""
ALL_OF = """
import {package} as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if "__main__" not in module.name:
        importlib.import_module(module.name)
"""
COMPILERS = ["numba", "llvmlite", "triton", "matplotlib", "cugraph", "pylibwholegraph"]


CASES = """
import os, sys, traceback
import torch  # once for all cases: it imports none of what they block
for line in sys.stdin:
    if os.fork() == 0:
        try:
            exec(eval(line), {"__name__": "case"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.wait()
    print(status, flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``run(code, blocked)`` where some modules cannot be imported, in a process that has imported torch only."""
    errors = tmp_path_factory.mktemp("imports") / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CASES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):

        def run(code, blocked):
            process.stdin.write(repr(BLOCK.format(blocked=blocked) + code) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", errors.read_text()

        yield run
        process.stdin.close()


def test_the_engine_says_where_loaders_are():
    with pytest.raises(ImportError, match=r"no NeighborLoader\. Import it from manyhop_pyg, or"):
        from manyhop import NeighborLoader  # noqa: F401
    assert not hasattr(manyhop, "nothing")


def test_packages_list_names_that_are_imported_when_they_are_first_used(run):
    for package in ("manyhop", "manyhop.features", "manyhop.sampling", "manyhop_dgl"):
        run(f"import {package} as package\nassert set(package.__all__) <= set(dir(package))", [])


def test_the_engine_imports_no_framework_and_no_compiler(run):
    run(ENGINE, ["torch_geometric", "dgl", *COMPILERS])


def test_what_needs_no_dgl_works_without_it(run):
    run(
        "import manyhop_dgl, manyhop_dgl.graphbolt\nmanyhop_dgl.Graph, manyhop_dgl.sample_tensors",
        ["torch_geometric", "dgl"],
    )


@pytest.mark.parametrize(("package", "other"), [("manyhop_dgl", "manyhop_pyg"), ("manyhop_pyg", "manyhop_dgl")])
def test_adapters_know_nothing_of_each_other(run, package, other):
    library = {"manyhop_dgl": "dgl", "manyhop_pyg": "torch_geometric"}
    if find_spec(library[package]) is None:
        pytest.skip(f"{library[package]} is not installed")
    run(ALL_OF.format(package=package), [library[other], other])


ELSEWHERE = """
import mmap, os, socket, sys
import numba, numpy, torch, torch_geometric.loader  # which have code of their own for each system
sys.modules.update(dict.fromkeys(["resource", "fcntl", "pwd", "triton"]))
lacking = {
    os: ["register_at_fork", "fork", "memfd_create", "preadv", "pwrite", "sched_getaffinity", "sched_setaffinity",
         "getuid", "sysconf", "statvfs"],
    mmap: [name for name in vars(mmap) if name.startswith(("MAP_", "PROT_", "MADV_"))],
    socket: ["AF_UNIX", "SO_PEERCRED"],
}
for module, names in lacking.items():
    for name in names:
        delattr(module, name)
"""


def test_loaders_on_cpus_need_nothing_that_only_posix_has(run):
    if find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    epoch = """
import manyhop_tools.cli, manyhop.features, manyhop.memory.pinned, manyhop.files, manyhop.memory
import manyhop_dgl, manyhop_dgl.graphbolt
from manyhop_pyg import NeighborLoader
data = torch_geometric.data.Data(x=torch.arange(4.)[:, None], edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
batches = list(NeighborLoader(data, [2, 2], batch_size=2, num_workers=1))
assert [batch.n_id.tolist() for batch in batches] == [[0, 1], [2, 3, 1, 0]]
"""
    run(ELSEWHERE + epoch, [])


@pytest.mark.parametrize("package", ["manyhop", "manyhop.features", "manyhop.sampling", "manyhop_pyg", "manyhop_dgl"])
def test_public_names_exist(package):
    """Names that are imported when they are first used, too."""
    pytest.importorskip("triton")
    module = pytest.importorskip(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
