"""Measures GPU memory: training with a loader, with segments of fixed sizes and with segments that grow; torch and
RAPIDS with a pool each and with one. Needs a GPU to itself; the latter also rmm and CuPy.

    python tests/placement/measure_memory.py
"""

import os
import subprocess
import sys
import tempfile
import time

GIB = 2**30
STEPS = 400


def train():
    """One run: seconds until the first batch, then peak memory and the time of a step."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphSAGE

    import manyhop_pyg

    nodes, edges = 1 << 22, 1 << 26
    torch.manual_seed(0)
    row, col = ((torch.rand(edges, device="cuda") ** power * nodes).long().cpu() for power in (3, 2))
    torch.cuda.empty_cache()
    data = Data(x=torch.randn(nodes, 128), y=torch.randint(40, (nodes,)), edge_index=torch.stack([row, col]))
    begin = time.perf_counter()
    loader = manyhop_pyg.NeighborLoader(
        data, [15, 10, 5], batch_size=1024, shuffle=True, device="cuda", num_workers=1, seed=0
    )
    made = time.perf_counter()
    next(iter(loader))
    torch.cuda.synchronize()
    first = time.perf_counter()
    print(f"loader made in {made - begin:.2f} s, first batch after {first - made:.2f} s", end="; ")
    model = GraphSAGE(128, 256, 3, 40).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    tables = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = 0
    while step < STEPS:
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == 30:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            if step == STEPS:
                break
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / (STEPS - 30)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(
        f"tables and model {tables / GIB:.2f} GiB, peak {peak / GIB:.2f}, taken from the driver {reserved / GIB:.2f}; "
        f"{seconds * 1e3:.1f} ms a step"
    )


def share(pool):
    """torch takes 8 GiB and gives them back, then RAPIDS does: what has the process taken from the driver?"""
    import cupy
    import rmm
    import torch
    from rmm.allocators.cupy import rmm_cupy_allocator

    import manyhop

    torch.zeros(1, device="cuda")
    free = least = torch.cuda.mem_get_info()[0]
    if pool == "one pool":
        manyhop.use_torch_memory()
    else:
        rmm.reinitialize(pool_allocator=True, initial_pool_size=GIB)
        cupy.cuda.set_allocator(rmm_cupy_allocator)
    for _ in range(3):
        for empty in (lambda: torch.empty(GIB, dtype=torch.uint8, device="cuda"), lambda: cupy.empty(GIB, cupy.uint8)):
            held = [empty() for _ in range(8)]
            least = min(least, torch.cuda.mem_get_info()[0])
            del held
    begin = time.perf_counter()
    for _ in range(5000):
        rmm.DeviceBuffer(size=1 << 20)
    seconds = (time.perf_counter() - begin) / 5000
    print(
        f"{(free - least) / GIB:.2f} GiB taken from the driver; RMM takes and gives a block in {seconds * 1e6:.1f} us"
    )


def run(title, *argv, **variables):
    print(f"{title}: ", end="", flush=True)
    subprocess.run([sys.executable, __file__, *argv], env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train()
    elif sys.argv[1:2] == ["share"]:
        share(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run("nothing compiled yet", "train", TRITON_CACHE_DIR=folder)
        for setting in ("False", "True"):
            run(f"expandable_segments:{setting}", "train", PYTORCH_ALLOC_CONF=f"expandable_segments:{setting}")
        for pool in ("a pool each", "one pool"):
            run(pool, "share", pool)
