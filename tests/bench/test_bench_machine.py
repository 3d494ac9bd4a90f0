"""``manyhop bench machine`` and ``manyhop bench cluster``: they run, and say what the model says."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from manyhop import files
from manyhop.costs import H100, H200, read_machine
from manyhop_bench.cli import main
from manyhop_bench.gpu.record import load
from manyhop_bench.machine.calibrate import calibrate
from manyhop_bench.machine.command import products_per_s
from manyhop_bench.machine.compare import as_table, compare, summary

DOCS = Path(__file__).parents[2] / "docs"
METIS = find_spec("pymetis")
RECORDS = [DOCS / "benchmarks" / name for name in ("gpu.json", "gpu-four.json", "gpu-h100.json")]
STEPS = DOCS / "benchmarks" / "gpu-steps.json"  # too few parts for constants of its own


def test_the_tables_of_the_page():
    """docs/clusters.md: predictions beside what was measured, as the code gives them."""
    page = (DOCS / "clusters.md").read_text()
    within = total = 0
    for path in [*RECORDS, STEPS]:
        runs = load(path.read_text())
        machine = H200 if path == STEPS else calibrate(runs, H100 if "h100" in path.name else H200)[0]
        compared = [one for run in runs for one in compare(run, machine)]
        assert "\n".join(as_table(compared)) in page
        within += sum(abs(one.error) <= 0.15 for one in compared)
        total += len(compared)
    assert f"{within} of {total} predictions are within 15 %" in " ".join(page.split())


def test_records(capsys, tmp_path):
    assert main(["machine", "--saved", *map(str, RECORDS), "--output", str(tmp_path / "four.json")]) == 0
    out = capsys.readouterr().out
    assert "## gpu.json" in out
    assert "| batch_s | 6.612e-05 |" in out
    assert (
        "as given: memory, products, half_products, captured_layer_s, captured_ddp_s, autocast_layer_s, cugraph." in out
    )
    assert read_machine(tmp_path / "four.json").name == "H100"  # the last one's
    assert read_machine(tmp_path / "four.json").gpu.batch_s < 4e-5


def test_other_records(tmp_path, capsys):
    record = json.loads(RECORDS[0].read_text())
    record["runs"][0]["title"] = "another"
    (tmp_path / "gpu.json").write_text(json.dumps(record))
    assert main(["machine", "--saved", str(tmp_path / "gpu.json")]) == 1
    assert "Expected a record of `manyhop bench gpu`" in capsys.readouterr().err


def test_summaries():
    (run,) = load(RECORDS[0].read_text())
    exact = [one for one in compare(run, H200) if one.row.workload == "[10, 10]" and one.row.gpus == 1]
    assert summary(exact) == "1 of 1 predictions are within 15% of what was measured."


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure the GPU, too")
def test_this_machine(capsys, tmp_path):
    path = tmp_path / "here.json"
    assert main(["machine", "--nodes", "3000", "--edges", "30000", "--rounds", "2", "--output", str(path)]) == 0
    out = capsys.readouterr().out
    assert "| edge_s |" in out
    assert "[10, 10] with 128 features, not used above:" in out
    assert "Of a GPU: none was found." in out
    machine = read_machine(path)
    assert machine.gpu is None
    assert machine.cpu.copy > 0


def test_products():
    assert products_per_s(torch.device("cpu"), torch.float32, rows=64, channels=16) > 0


def test_clusters(capsys, tmp_path):
    files.save_graph(
        tmp_path / "g", {"_N": 400}, {("_N", "_E", "_N"): tuple(torch.randint(0, 400, (2, 4000)))}, homogeneous=True
    )
    argv = ["cluster", "--ranks", "1", "2", "8", "--gpus", "2", "--batches", "8", "--batch-size", "10", "--steps", "16"]
    assert main([*argv, "--graph", str(tmp_path / "g"), "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "cluster.md").read_text() == out
    assert "400 nodes; 8 sampled batches" in out
    for ranks in (1, 2, 8):
        assert out.count(f"\n| {ranks} | ") == (5 if METIS else 4)
    assert main([*argv, "--nodes", "500", "--edges", "3000"]) == 0
    out = capsys.readouterr().out
    assert "500 nodes;" in out
    assert METIS is None or "500 nodes, 2,000 communities, numbered by the parts that METIS" in out
    assert main(["cluster", "--ranks", "3", "8"]) == 1
    assert "numbers of ranks that divide 8" in capsys.readouterr().err
