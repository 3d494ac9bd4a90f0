"""A loader that one process makes and another one uses: kernels load or compile where they are first called."""

import subprocess
import sys

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


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 30, (2, 200), generator=generator)
    data = Data(x=torch.rand(30, 4, generator=generator), edge_index=edge_index)
    options = {"batch_size": 8, "seed": 1, "num_workers": int(sys.argv[2])}
    loaders = [
        NeighborLoader(data, [3, 2], **options),
        LinkNeighborLoader(data, [3], edge_index[:, :20], neg_sampling="binary", **options),
    ]
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(loaders, queue))
    process.start()
    theirs = queue.get()
    process.join()
    print(process.exitcode, theirs == [batches(loader) for loader in loaders])
"""


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_used_by_another_process(tmp_path, method, num_workers):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), method, str(num_workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr


def test_a_forked_process_compiles(tmp_path, monkeypatch):
    """With an empty cache, the parent compiles the sampler, and the child what gathers rows."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    test_a_loader_used_by_another_process(tmp_path, "fork", 0)
