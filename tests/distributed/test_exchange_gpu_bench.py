"""What ``manyhop bench gpu`` measures of the exchange: two ranks without a GPU, with another gather beside it."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.command import QUICK
from benchmarks.gpu.job import Sink, read_results
from benchmarks.gpu.record import Run
from benchmarks.gpu.report import as_text
from benchmarks.gpu.timing import Ranks

import manyhop

pytestmark = pytest.mark.slow
ENV = {"TRITON_INTERPRET": "1"}
JOB = dataclasses.replace(QUICK, device="cpu", contender="manyhop", parts=("gather",), gpus=2, rounds=2)
sys.path.insert(0, str(Path(__file__).parents[1]))  # also of ranks


def measure(results, peer, right, rows, row_bytes):
    import fast_interpreter  # noqa: F401
    from benchmarks.gpu import exchange

    closed = []

    def wholegraph(rows, width):
        if not peer:
            raise ImportError("pylibwholegraph cannot be imported")

        def gather(ids):
            return (ids % 1009 / 1009 if right else ids * 0.0)[:, None].expand(-1, width).float()

        return torch.empty(rows // 2, width), gather, lambda: closed.append(rows)

    exchange.ROWS, exchange.ROW_BYTES, exchange.TURNS = rows, row_bytes, 1
    exchange._WARM_UP, exchange._wholegraph = 1, wholegraph
    rank = manyhop.init().rank
    job = dataclasses.replace(JOB, gather_table=1 << 16, results=results)
    try:
        exchange.exchange(job, Ranks(rank, 2, torch.device("cpu")), Sink(job, silent=rank > 0))
    except RuntimeError as error:
        return str(error)
    return closed


@pytest.mark.slow
def test_both_are_measured_at_all_sizes(launcher, tmp_path):
    closed = launcher.run(measure, str(tmp_path / "r"), True, True, (40, 90), (64, 128), env=ENV)
    assert closed == [[512, 256]] * 2
    rows, missing = read_results((tmp_path / "r").read_text())
    sizes = [
        f"{count} rows of {width} B{skewed}" for width in (64, 128) for skewed in ("", ", skewed") for count in (40, 90)
    ]
    assert [(row.workload, row.name) for row in rows] == [
        (s, name) for s in sizes for name in ("manyhop", "WholeGraph")
    ]
    assert all(row.part == "exchange" and row.gpus == 2 and len(row.seconds) == 2 for row in rows)
    assert rows[0].work == {"NVLink": 40 * 64 / 2}
    assert not missing
    text = as_text([Run(title="A", header=[], rows=rows, missing=[])])
    ratio = rows[1].median_s / rows[0].median_s
    line = next(line for line in text.splitlines() if line.startswith("40 rows of 64 B") and "WholeGraph" in line)
    assert line.split()[-1] in (f"{ratio:.2f}", f"{ratio:.1f}")


def test_without_wholegraph_manyhop_is_measured_alone(launcher, tmp_path):
    launcher.run(measure, str(tmp_path / "r"), False, True, (40,), (64,), env=ENV)
    rows, missing = read_results((tmp_path / "r").read_text())
    assert [row.name for row in rows] == ["manyhop"] * 2
    assert {(line.name, line.part, line.gpus) for line in missing} == {("WholeGraph", "exchange", 2)}
    assert "pylibwholegraph cannot be imported" in missing[0].reason


def test_wrong_rows_are_no_figures(launcher, tmp_path):
    messages = launcher.run(measure, str(tmp_path / "r"), True, False, (40,), (64,), env=ENV)
    assert messages == ["the rows that came are not those that were asked for"] * 2
    assert not (tmp_path / "r").exists()
