"""Starts the processes of a job, waits for them, and returns how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.ports import reserved_port
from benchmarks.gpu.job import Job
from manyhop.system.allocator import SETTING, VARIABLES

_GRACE = 10.0  # seconds that the other ranks have once one of them has failed


def launch(job: Job, timeout: float, gpus: Sequence[str] = ()) -> str | None:
    """Run a job to its end.

    Args:
        job: what to measure.
        timeout: seconds until it is ended.
        gpus: the GPUs that its processes see, as in ``CUDA_VISIBLE_DEVICES``.

    Returns:
        ``None`` where all its processes ended well, else what became of the first that did not.
    """
    count = 1 if job.contender == "hardware" else job.gpus
    with reserved_port() as port, tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(rank) for rank in range(count)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.gpu.worker", job.to_json()],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=_environment(job, rank, count, port, gpus),
                    )
                )
        failed, in_time = _wait(processes, timeout)
        if failed is None:
            return None
        if not in_time:
            return f"was ended after {timeout:.0f} s"
        lines = logs[failed].read_text(errors="replace").strip().splitlines()
        status = processes[failed].returncode
        return (
            f"ended with status {status}: {' / '.join(lines[-2:])[-300:]}" if lines else f"ended with status {status}"
        )


def _environment(job: Job, rank: int, count: int, port: int, gpus: Sequence[str]) -> dict[str, str]:
    env = dict(os.environ)
    env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if job.device == "cpu":
        env |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}  # the flow, without a GPU
    if job.contender != "manyhop" and env.get(VARIABLES[0]) == SETTING:
        env[VARIABLES[0]] = "expandable_segments:False"  # torch's default, which manyhop has changed when imported here
    return env


def _wait(processes: list[subprocess.Popen[bytes]], timeout: float) -> tuple[int | None, bool]:
    """Which process was the first to fail, and whether by itself; ends those that do not come to an end."""
    deadline = time.monotonic() + timeout
    failed = None
    while True:
        states = [process.poll() for process in processes]
        if failed is None and any(states):
            failed = next(rank for rank, state in enumerate(states) if state)
            deadline = min(deadline, time.monotonic() + _GRACE)
        if None not in states:
            return failed, True
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    return (states.index(None), False) if failed is None else (failed, True)
