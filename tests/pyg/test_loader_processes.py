"""A loader that one process makes and another one uses: kernels load or compile where they are first called."""

import subprocess
import sys

import forks
import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import multiprocessing
import sys

import torch
from torch_geometric.data import Data

from manyhop_pyg import LinkNeighborLoader, NeighborLoader


def batches(loader):
    return [(batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.tolist()) for batch in loader]


def child(loaders, queue):
    queue.put([batches(loader) for loader in loaders])


def made(num_workers):
    options = {"batch_size": 8, "seed": 1, "num_workers": num_workers}
    yield NeighborLoader(data, [3, 2], **options)
    yield LinkNeighborLoader(data, [3], edge_index[:, :20], neg_sampling="binary", **options)


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 30, (2, 200), generator=generator)
    data = Data(x=torch.rand(30, 4, generator=generator), edge_index=edge_index)
    loaders = [loader for num_workers in sys.argv[2:] for loader in made(int(num_workers))]
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(loaders, queue))
    process.start()
    theirs = queue.get()
    process.join()
    print(process.exitcode, theirs == [batches(loader) for loader in loaders])
"""


def check(folder, python, method, *num_workers):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [python, str(script), method, *num_workers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_used_by_another_process(tmp_path, method):
    check(tmp_path, forks.python(), method, "0", "2")


@pytest.mark.slow
def test_a_forked_process_compiles(tmp_path, monkeypatch):
    """With an empty cache, the parent compiles the sampler, and the child what gathers rows."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    check(tmp_path, sys.executable, "fork", "0")
