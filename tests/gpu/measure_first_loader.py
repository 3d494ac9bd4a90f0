"""Measures the first loader on a GPU: on a machine that has compiled nothing yet, and in the next process. Needs a GPU.

python tests/gpu/measure_first_loader.py
"""

import os
import subprocess
import sys
import tempfile
import time


def make_loader() -> None:
    """One process: seconds until there is a loader, milliseconds until there is a batch."""
    import torch
    from torch_geometric.data import Data

    import manyhop_pyg

    nodes, edges = 1 << 20, 1 << 23
    data = Data(x=torch.rand(nodes, 128), edge_index=torch.randint(0, nodes, (2, edges)))
    torch.zeros(1, device="cuda").item()
    begin = time.perf_counter()
    loader = manyhop_pyg.NeighborLoader(data, [15, 10, 5], batch_size=1024, shuffle=True, seed=1, device="cuda")
    made = time.perf_counter()
    next(iter(loader))
    torch.cuda.synchronize()
    first = time.perf_counter()
    print(f"loader made in {made - begin:.2f} s, first batch after {1e3 * (first - made):.1f} ms", flush=True)


def main() -> None:
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            environ = os.environ | {"TRITON_CACHE_DIR": f"{folder}/triton", "NUMBA_CACHE_DIR": f"{folder}/numba"}
            for name in ("empty caches", "next process"):
                print(f"{name}: ", end="", flush=True)
                subprocess.run([sys.executable, __file__, "once"], env=environ, check=True)


if __name__ == "__main__":
    make_loader() if sys.argv[1:] == ["once"] else main()
