"""Run the tests that need GPUs: `make gpu`, `make gpu GPUS=2`. Those that compare the memory of the whole GPU run last,
one at a time. Prints the tests' names, then a line per failure and per reason why tests did not run."""

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PYTEST = ["-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "no:benchmark", "--tb=short", "--durations=15"]
PYTEST += ["-o", "junit_family=xunit1"]  # with files, which the report names
TOGETHER, ALL = 470.0, 580.0  # seconds after which tests are interrupted
RANKS_HANG = 150  # seconds after which ranks are killed, and their test fails


def main(gpus: int) -> int:
    """Run the tests for one GPU, or for several, and return the exit status."""
    found = torch.cuda.device_count()
    if found < gpus:
        print(f"Expected {gpus} CUDA device(s), got {found}. Run it on a machine with GPUs; `make test` needs none.")
        return 2
    marked = "multigpu" if gpus > 1 else "gpu and not multigpu"
    spread = ["--numprocesses", "8", "--dist", "worksteal" if gpus > 1 else "loadfile"]
    alone = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if "mark.whole_gpu" in file.read_text()]
    began, path, part = time.monotonic(), ROOT / f"gpu-{gpus}.xml", ROOT / f"gpu-{gpus}-part.xml"
    endings = [run(["-m", f"{marked} and not whole_gpu", *spread, str(TESTS)], part, TOGETHER)]
    add(part, path, anew=True)
    endings.append(run(["-m", f"{marked} and whole_gpu", *alone], part, ALL - (time.monotonic() - began)))
    add(part, path, anew=False)
    print(report(path), f"{time.monotonic() - began:.0f} s; {path}", *filter(None, endings), sep="\n")
    return int(any(endings))


def run(options: Sequence[str], junit: Path, seconds: float) -> str:
    """Run pytest and return why it failed, or nothing."""
    command = [sys.executable, *PYTEST, f"--junitxml={junit}", *options]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"RANKS_HANG": str(RANKS_HANG)}) as pytest:
        try:
            status = pytest.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.send_signal(signal.SIGINT)  # it writes down what it has
            try:
                pytest.wait(20)
            except subprocess.TimeoutExpired:
                pytest.kill()
            return f"Interrupted after {seconds:.0f} s: not all tests have run; those under way count as passed."
    return f"pytest ended with {status}." if status else ""


def add(part: Path, path: Path, *, anew: bool) -> None:
    """Add the results in a JUnit file to another one."""
    results = ElementTree.Element("testsuites") if anew else ElementTree.parse(path).getroot()
    if part.exists():
        results.extend(ElementTree.parse(part).getroot())
        part.unlink()
    ElementTree.ElementTree(results).write(path)


def report(path: Path) -> str:
    """Return a line per failure, one per reason of tests that did not run, and the counts."""
    lines, counts, reasons = [], Counter({"passed": 0, "failed": 0, "not run": 0}), Counter[str]()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        problem = next((case.find(tag) for tag in ("failure", "error", "skipped") if case.find(tag) is not None), None)
        message = (problem.get("message") or "").split("\n")[0] if problem is not None else ""
        if problem is None:
            counts["passed"] += 1
        elif problem.tag == "skipped":
            counts["not run"] += 1
            reasons[message] += 1
        else:
            counts["failed"] += 1
            lines.append(f"FAILED {case.get('file')}::{case.get('name')}: {message}")
    lines += [f"not run: {number}: {reason}" for reason, number in reasons.most_common()]
    return "\n".join([*lines, ", ".join(f"{number} {what}" for what, number in counts.items())])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
