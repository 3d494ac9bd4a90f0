"""One small run of each program of tests/benchmarks. What needs a GPU takes the CPU for one."""

import dataclasses
import os
import re

import pytest
import torch
from benchmarks.__main__ import main

import manyhop_dgl  # noqa: F401  # makes dgl importable


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def measure(capfd, tmp_path):
    """Run a program, check that it saves what it prints, and return that."""

    def run(target, *arguments):
        environment = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
        try:
            main([target, *arguments, "--output", str(tmp_path)])
        finally:
            os.environ.update({name: value for name, value in environment.items() if value is not None})
        text = capfd.readouterr().out
        assert (tmp_path / f"{target}.md").read_text() == text
        return text

    return run


def test_cpu(monkeypatch, measure):
    from benchmarks import cpu

    size = dataclasses.replace(
        cpu.QUICK, name="cpu", num_nodes=2_000, num_edges=20_000, sampling_rounds=1, min_turn_s=0.0, loader_rounds=1,
        loader_batches=1, build_edges=20_000, build_rounds=1, memory=1 << 20, batch_size=32,
    )  # fmt: skip
    monkeypatch.setattr(cpu, "QUICK", size)
    text = measure("cpu", "--quick", "--threads", "1")
    assert {text.count(f"| {title} | manyhop | 1 |") for title, *_ in cpu.WORKLOADS.values()} == {3, 5}
    assert "| edge list | PyG | 1 |" in text


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt", "ignore:This process .* is multi-threaded")
def test_dgl(monkeypatch, measure):
    pytest.importorskip("dgl")
    from benchmarks import dgl

    size = dgl.Size(name="dgl", scale=9, num_edges=4000, rounds=1, batches=2, batch_size=64, min_turn_s=0.0)
    monkeypatch.setattr(dgl, "QUICK", size)
    assert "| LaborSampler 15-10-5 | DGL | 1 |" in measure("dgl", "--quick", "--threads", "1")


@pytest.mark.slow
def test_gpu():
    pytest.importorskip("triton")
    from benchmarks.gpu.command import CONTENDERS, QUICK, run
    from benchmarks.gpu.report import as_markdown

    tiny = dataclasses.replace(
        QUICK, device="cpu", num_nodes=1000, num_edges=8000, fanouts=((3, 2),), batch_size=16, rounds=1, merged=(1,),
        sampling_batches=2, gather_bytes=1 << 12, gather_table=1 << 15, row_bytes=(32, 64), epoch_batches=3, epochs=1,
        num_features=4, hidden=(4,), strong_batches=2,
    )  # fmt: skip
    parts = CONTENDERS["manyhop"]
    rows, missing = run(tiny, parts, ("manyhop", "torch", "WholeGraph", "cuGraph-PyG"), [1], 900)
    assert {row.part for row in rows if row.name == "manyhop"} == set(parts)
    assert all(min(row.seconds) > 0 for row in rows)
    assert {line.name for line in missing} == {"WholeGraph", "cuGraph-PyG"}
    text = "\n".join(as_markdown(rows, missing))
    assert "| [3, 2], 4 hidden, weak | 1 | manyhop | captured |" in text


def test_step(monkeypatch, measure):
    from benchmarks import step

    training = step.TrainingSize(
        num_nodes=256, num_edges=2000, features=8, channels=8, fanouts=(3, 2), batch_size=64, turn=5
    )
    layer = step.LayerSize(num_dst=40, num_src=90, num_edges=120, channels=8)
    monkeypatch.setattr(step, "SIZES", {"cpu": (layer, training), "cuda": (layer, training)})
    monkeypatch.setattr(step, "_MIN_TURN", 0.0)
    text = measure("step", "--rounds", "1")
    assert "| GATv2 layer, float32 | manyhop |" in text
    assert "| GraphSAGE | the same without loading |" in text


def test_exchange(forked, measure):
    sizes = ["--rows", "2000", "--ids", "100", "--features", "4", "--rounds", "1", "--batches", "1"]
    assert re.search(r"^\| 16 bytes, host \| 0\.0 \| \d+\.\d\d \|", measure("exchange", *sizes), re.MULTILINE)


def test_embeddings(measure):
    text = measure("embeddings", "--rows", "500", "--ids", "200", "--rounds", "2")
    assert "| forward, backward, update |" in text


def test_start():
    from benchmarks.start import _process

    steps = _process("manyhop", "")
    assert steps.shape == (3, 2)
    assert steps[:, 1].sum() > 0.01
