"""``manyhop bench gpu`` where there is a GPU: manyhop, torch and the limits are measured, and nothing of them fails."""

import dataclasses
import math

import pytest
import torch
from benchmarks.gpu.command import QUICK, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SMALL = dataclasses.replace(
    QUICK,
    num_nodes=1 << 14,
    num_edges=1 << 18,
    rounds=2,
    merged=(1, 4),
    sampling_batches=8,
    gather_bytes=1 << 22,
    gather_table=1 << 24,
    row_bytes=(64, 512),
    epoch_batches=4,
    strong_batches=4,
    batch_size=128,
)


def _lost(found, *names: str) -> list[object]:
    return [line for line in found.missing if line.name in names]


def test_all_parts_on_one_gpu():
    parts = ("sampling", "gather", "loader", "epoch", "build")
    found = run(SMALL, parts, ("manyhop", "torch"), [1], 300, [], side_by_side=True)
    assert not _lost(found, "hardware", "manyhop", "torch")
    assert {row.part for row in found.rows if row.name == "manyhop"} == set(parts)
    assert {row.workload for row in found.of("limits")} == {"copy", "random reads", "PCIe"}
    for row in found.rows:
        assert min(row.seconds) > 0
        assert row.part in ("limits", "build") or (found.limit_s(row) or math.nan) > 0
        assert row.part == "limits" or "peak_bytes" in row.extra  # of all processes: others may be on that GPU, too


@pytest.mark.multigpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs several CUDA devices")
def test_loaders_and_limits_on_two_gpus():
    pytest.importorskip("pylibwholegraph")
    found = run(SMALL, ("loader", "epoch"), ("manyhop",), [2], 300, [])
    assert not _lost(found, "hardware", "manyhop")
    assert {row.workload for row in found.of("limits")} == {"copy", "random reads", "PCIe", "NVLink"}
    assert {row.setting for row in found.of("loader")} == {"sharded", "replica", "distributed"}
