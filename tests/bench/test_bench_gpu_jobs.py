"""Jobs of the benchmark for GPUs: their order, processes, GPUs and time."""

import dataclasses
import math
import threading
import time

import pytest

from manyhop.system.allocator import SETTING, VARIABLES
from manyhop_bench.gpu import command, schedule
from manyhop_bench.gpu.command import QUICK, _jobs, run
from manyhop_bench.gpu.job import Missing, Row, Sink
from manyhop_bench.gpu.launch import _environment, launch
from manyhop_bench.gpu.schedule import run_jobs

JOB = dataclasses.replace(QUICK, device="cpu")


def test_a_process_that_breaks_off_is_reported(tmp_path):
    job = dataclasses.replace(JOB, contender="hardware", parts=("limits",), results=str(tmp_path / "no" / "folder"))
    assert "FileNotFoundError" in (launch(job, 60) or "")


@pytest.mark.parametrize(("contender", "growing"), [("manyhop", True), ("torch", False)])
def test_peers_keep_torchs_own_allocator(contender, growing, monkeypatch):
    monkeypatch.setenv(VARIABLES[0], SETTING)  # as importing manyhop does
    env = _environment(dataclasses.replace(JOB, contender=contender), 1, 4, 1234, ["5"])
    assert (env[VARIABLES[0]] == SETTING) == growing
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_PORT"]) == ("1", "4", "1234")


def test_loaders_come_first_and_several_gpus_share_processes():
    names = ("torch", "manyhop")
    jobs, missing = _jobs(JOB, names, ("sampling", "gather", "loader"), 1, "/f")
    assert [(job.contender, job.parts) for job in jobs] == [
        ("manyhop", ("loader",)),
        ("manyhop", ("sampling",)),
        ("torch", ("gather",)),
        ("manyhop", ("gather",)),
    ]
    assert len({job.results for job in jobs}) == 4
    several, _ = _jobs(JOB, names, ("sampling", "gather", "loader"), 4, "/f")
    assert [(job.contender, job.parts) for job in several] == [
        ("manyhop", ("loader",)),
        ("manyhop", ("sampling", "gather")),
    ]
    assert several[0].placements == ("sharded", "replica", "distributed", "sharded, captured")
    assert not missing
    with_pyg, _ = _jobs(JOB, ("PyG", "manyhop"), ("loader", "gather"), 1, "/f")
    assert [job.contender for job in with_pyg] == ["manyhop", "manyhop", "PyG"]


def test_each_number_of_gpus_has_its_share_of_the_time(monkeypatch):
    left = []

    def run_jobs(jobs, *, deadline, **more):
        left.append(deadline - time.monotonic())
        return iter(())

    monkeypatch.setattr(command, "run_jobs", run_jobs)
    run(JOB, ("gather",), ("torch",), [1, 2], 100, [], budget=6000)
    assert left == [pytest.approx(3000, abs=1400), pytest.approx(6000, abs=1400)]


def test_a_process_that_hangs_is_ended(tmp_path):
    job = dataclasses.replace(JOB, contender="torch", parts=("gather",), gpus=2, results=str(tmp_path / "r"))
    assert launch(job, 0.3) == "was ended after 0 s"


@pytest.mark.parametrize("visible", [None, "4,5,6"])
def test_jobs_at_the_same_time_have_gpus_of_their_own(visible, tmp_path, monkeypatch):
    """Three jobs of one GPU on three GPUs: all are there at once, with different GPUs; one that fails is noted."""
    met, seen = threading.Barrier(3, timeout=60), []

    def fake_launch(job, timeout, gpus):
        seen.append(gpus)
        met.wait()
        if job.contender == "torch":
            return "ended with status -6"
        Sink(job).add(Row(part="gather", workload="w", name=job.contender, seconds=[1.0]))
        return None

    monkeypatch.setattr(schedule, "launch", fake_launch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    names = ("manyhop", "torch", "WholeGraph")
    jobs = [dataclasses.replace(JOB, contender=n, parts=("gather",), results=str(tmp_path / n)) for n in names]
    lines = []
    options = {"timeout": 60, "num_gpus": 3, "progress": lines.append}
    results = list(run_jobs(jobs, deadline=math.inf, at_once=3, **options))
    assert sorted(seen) == [[gpu] for gpu in (visible or "0,1,2").split(",")]
    assert {row.name for rows, _ in results for row in rows} == {"manyhop", "WholeGraph"}
    lost = [line for _, missing in results for line in missing]
    assert lost == [Missing(name="torch", reason="ended with status -6", part="gather")]
    assert len(lines) == 3
    late = list(run_jobs(jobs[:1], deadline=time.monotonic() - 1, at_once=1, **options))
    assert late == [([], [Missing(name="manyhop", reason="there was no time left", part="gather")])]
