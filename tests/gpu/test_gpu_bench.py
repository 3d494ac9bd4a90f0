"""``python tests/benchmarks gpu`` where there is a GPU: manyhop, torch and the limits are measured, nothing fails."""

import dataclasses

import pytest
from benchmarks.gpu.command import CONTENDERS, QUICK, run
from benchmarks.gpu.report import limit_s

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu]

SMALL = dataclasses.replace(
    QUICK, num_nodes=1 << 14, num_edges=1 << 18, rounds=2, merged=(1, 4), sampling_batches=8, gather_bytes=1 << 22,
    gather_table=1 << 24, row_bytes=(64, 512), epoch_batches=4, strong_batches=4, batch_size=128,
)  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath / "tests"))


def test_all_parts_on_one_gpu():
    parts = CONTENDERS["manyhop"]
    rows, missing = run(SMALL, parts, ("manyhop", "torch"), [1], 300)
    assert not missing
    assert {row.part for row in rows if row.name == "manyhop"} == set(parts)
    assert {row.workload for row in rows if row.part == "limits"} == {"copy", "random reads", "PCIe"}
    for row in rows:
        assert min(row.seconds) > 0
        assert row.part in ("limits", "stores", "build") or (limit_s(rows, row) or 0) > 0
        assert row.part in ("limits", "stores") or "peak_bytes" in row.extra


@pytest.mark.multigpu
@pytest.mark.needs("pylibwholegraph")
def test_loaders_and_limits_on_two_gpus():
    rows, missing = run(SMALL, ("loader", "epoch", "stores"), ("manyhop",), [2], 300)
    assert not missing
    assert {row.workload for row in rows if row.part == "limits"} == {"copy", "random reads", "PCIe", "NVLink"}
    assert {row.setting for row in rows if row.part == "loader"} >= {"sharded", "replica", "distributed"}
    assert sum(row.part == "stores" for row in rows) == 4
