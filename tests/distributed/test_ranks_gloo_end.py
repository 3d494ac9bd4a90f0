"""The end of a process whose group was gloo's."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent(
    """
    import atexit, os, sys, time

    def threads():
        return len(os.listdir("/proc/self/task"))

    @atexit.register  # before manyhop does, so that it comes after what that has registered
    def look():
        end = time.monotonic() + 60
        while threads() > before and time.monotonic() < end:  # the system lists a joined thread a moment longer
            time.sleep(0.01)
        sys.stdout.write(f"left {threads() - before}\\n")

    import torch
    import torch.distributed as dist
    import manyhop

    before = threads()
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
    sys.stdout.write(f"made {threads() - before}\\n")
    manyhop.init()
    dist.all_reduce(torch.zeros(2))
    cycle = [dist.group.WORLD]  # as DDP's model, which holds the group
    cycle.append(cycle)
    del cycle
    dist.destroy_process_group()
    """
)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at the system's list of threads")
def test_its_threads_end_before_the_interpreter_does(tmp_path):
    """One that still has a tensor to drop would find the interpreter gone, and abort the process."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made, left = done.stdout.splitlines()
    assert int(made.removeprefix("made ")) > 0
    assert left == "left 0"
