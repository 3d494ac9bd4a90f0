"""Simulated nodes with a torchrun each: in network namespaces where these may be made, else on one network."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import forks
from launch import HANGS, Node, reserve_port


@dataclass
class Torchrun:
    """The torchrun of one node, and all that it and its ranks print."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def output(self) -> str:
        return Path(self.log.name).read_text(errors="replace")


@contextlib.contextmanager
def start(
    script: Path,
    *args: str,
    nodes: Sequence[Node],
    ranks_per_node: int,
    elastic: bool = False,
    fresh: bool = False,
) -> Iterator[list[Torchrun]]:
    """Run a script on all nodes; what still runs at the end is ended.

    Args:
        script: what each rank runs.
        *args: its arguments.
        nodes: where torchrun is started.
        ranks_per_node: processes of each.
        elastic: whether the nodes meet at a c10d rendezvous, which numbers them, or have their numbers.
        fresh: whether ranks are interpreters of their own: CUDA does not work in forked ones.
    """
    with reserve_port() as reserved, contextlib.ExitStack() as at_end:
        port = reserved.getsockname()[1]
        runs = []
        for number, node in enumerate(nodes):
            where = ["--nnodes", str(len(nodes)), "--nproc-per-node", str(ranks_per_node)]
            if elastic:
                where += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes[0].address}:{port}", "--rdzv-id", "job"]
                where += ["--rdzv-conf", f"is_host={int(number == 0)}", "--local-addr", node.address]
            else:
                where += ["--node-rank", str(number), "--master-addr", nodes[0].address, "--master-port", str(port)]
            command = [forks.python(), "-m", "torch.distributed.run", *where, str(script), *args]
            if node.namespace:
                command = ["ip", "netns", "exec", node.namespace, *command]
            log = at_end.enter_context(tempfile.NamedTemporaryFile())
            env = forks.environment(**node.env, **({"PYTHON_EXEC": sys.executable} if fresh else {}))
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            at_end.callback(_end, process)
            runs.append(Torchrun(process, log))
        yield runs


def wait(runs: Sequence[Torchrun], timeout: float = HANGS) -> list[int]:
    """Wait for all nodes; their exit statuses."""
    end = time.monotonic() + timeout
    for run in runs:
        try:
            run.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            outputs = "\n".join(f"node {k}:\n{each.output()}" for k, each in enumerate(runs))
            raise AssertionError(f"still running after {timeout:g} s:\n{outputs}") from None
    return [run.process.returncode for run in runs]


def names(output: str, rank: int) -> bool:
    """Whether an error in the output names a rank, maybe with others of its node."""
    return re.search(rf"ranks? (\d+, |\d+ and )*{rank}\b", output) is not None


def was_awaited(output: str, rank: int) -> bool:
    """Whether a rank waited for more than a timeout for its data, which took another node 1.5 timeouts to load."""
    found = re.search(rf"rank {rank} has data after ([\d.]+) timeouts", output)
    return found is not None and float(found[1]) > 1


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()  # torchrun ends its ranks
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
