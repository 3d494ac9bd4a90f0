"""Which job runs when, on which GPUs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.gpu.job import Job, Missing, Row, read_results
from benchmarks.gpu.launch import launch

Results = tuple[list[Row], list[Missing]]


def run_jobs(
    jobs: Iterable[Job],
    *,
    timeout: float,
    deadline: float,
    num_gpus: int,
    at_once: int,
    progress: Callable[[str], None],
) -> Iterator[Results]:
    """Run jobs of as many GPUs each, and give the results of each as it ends.

    Args:
        jobs: what to run, in this order.
        timeout: seconds for each.
        deadline: when all have to have ended, in ``time.monotonic``'s seconds.
        num_gpus: GPUs that there are.
        at_once: how many may run at the same time, each on GPUs of its own.
        progress: called with a line for each job that has ended.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus)))).split(",")
    free = list(visible)
    lock = threading.Lock()

    def one(job: Job) -> Results:
        left = min(timeout, deadline - time.monotonic())
        if left < 1:
            reason = "there was no time left"
            return [], [Missing(name=job.contender, reason=reason, part=part, gpus=job.gpus) for part in job.parts]
        with lock:
            mine, free[:] = free[: job.gpus], free[job.gpus :]
        failure = launch(job, left, mine)
        with lock:
            free.extend(mine)
        results = Path(job.results)
        rows, missing = read_results(results.read_text() if results.exists() else "")
        if failure is not None:
            reported = {line.part for line in rows} | {line.part for line in missing}
            rest = [part for part in job.parts if part not in reported] or [job.parts[-1]]
            missing += [Missing(name=job.contender, reason=failure, part=part, gpus=job.gpus) for part in rest]
        progress(f"{job.contender}, {job.gpus} GPU{'s' if job.gpus > 1 else ''}: {', '.join(job.parts)}")
        return rows, missing

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            yield done.result()
