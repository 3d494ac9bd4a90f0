"""The examples with learned embeddings, in a quick setting, on the real data, with one process and with several."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import forks
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [
    ("pyg_embeddings.py", 4),
    pytest.param(
        "dgl_embeddings.py", 4, marks=pytest.mark.skipif(find_spec("dgl") is None, reason="DGL is not installed")
    ),
]


def accuracies(*arguments, processes=1):
    """The test accuracy of each epoch."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [forks.python(), *(ranks if processes > 1 else []), *arguments]
    done = subprocess.run(command, cwd=EXAMPLES, env=forks.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [float(found) for found in re.findall(r"test accuracy (\S+)$", done.stdout, flags=re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "processes"), SCRIPTS)
def test_people_are_learned(script, processes):
    without = accuracies(script, "--epochs", "1", "--no-embeddings")
    assert 0.25 < without[-1] < 0.33
    assert accuracies(script, "--epochs", "3")[-1] > 0.4
    assert accuracies(script, "--epochs", "2", processes=processes)[-1] > 0.38
