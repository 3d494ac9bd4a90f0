"""One timeline of loaders that two ranks have."""

import json
import time

import pytest
import torch
from rank_loaders import homogeneous

from manyhop_tools.cli import main

LATE_S = 1.0


def bolt():
    import manyhop_dgl.graphbolt as gb

    graph = gb.fused_csc_sampling_graph(torch.arange(0, 41, 2), torch.arange(40) % 20)
    items = gb.ItemSet(torch.arange(20), names="seeds")
    pipe = gb.DistributedItemSampler(items, batch_size=2).sample_neighbor(graph, [2])
    return gb.DataLoader(pipe, num_workers=1)


def save(kind, folder):
    """Save a timeline of batches that rank 1 begins later.

    Return when they began and ended, on the wall clock, and how many they are.
    """
    import manyhop

    world = manyhop.init()
    loader = homogeneous(distributed=True, num_workers=1) if kind == "PyG" else bolt()
    list(loader)  # without time for compilation
    loader = homogeneous(distributed=True, num_workers=1) if kind == "PyG" else bolt()
    torch.distributed.barrier()
    time.sleep(LATE_S * world.rank)
    begin = time.time()
    count = len(list(loader))
    end = time.time()
    loader.timeline(f"{folder}/rank{world.rank}.json")
    return begin, end, count


@pytest.mark.parametrize("kind", ["PyG", "GraphBolt"])
def test_two_ranks(launcher, tmp_path, kind):
    found = launcher.run(save, kind, str(tmp_path))
    files = [str(tmp_path / f"rank{rank}.json") for rank in range(2)]
    assert main(["timeline", *files, "-o", str(tmp_path / "run.json")]) == 0
    trace = json.loads((tmp_path / "run.json").read_text())
    start = trace["otherData"]["start_unix_ns"] / 1e9
    for rank, (begin, end, count) in enumerate(found):
        events = [event for event in trace["traceEvents"] if event["pid"] == rank]
        (process,) = (event["args"]["name"] for event in events if event["name"] == "process_name")
        assert process.startswith(f"rank {rank} on ")
        lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert lanes == {1: "user", 2: "manyhop-0"}
        intervals = [event for event in events if event["ph"] == "X"]
        times = [(start + event["ts"] / 1e6, start + (event["ts"] + event["dur"]) / 1e6) for event in intervals]
        assert all(begin - 0.01 <= first <= last <= end + 0.01 for first, last in times)  # clocks of a machine agree
        for stage, tid in (("wait", 1), ("step", 1), ("sample", 2)):
            batches = {e["args"]["batch"] for e in intervals if e["name"] == stage and e["tid"] == tid}
            assert len(batches) == count > 2
