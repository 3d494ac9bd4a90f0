"""Runs one job in a process of its own, and reads what came of it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from suites import IMPORTED_FROM, LIBRARY, ONE_BY_ONE, Job

INSIDE = Path(__file__).with_name("inside.py")
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
# What the output of a script that fails shows to be missing.
WHY_NOT = [  # no GPU first
    (
        r"NVIDIA driver|not compiled with CUDA|[Nn]o CUDA GPUs|CUDA is not available|gpu backend|CUDA device|got cuda",
        "a GPU",
    ),
    (r"ConnectionError|Name or service not known|Temporary failure in name resolution", "the network"),
    (r"Neither `tensorboard` nor", "the package tensorboard"),
    (r"\bNCCL\b", "NCCL"),
    (r"LogisticRegression.*unexpected keyword argument 'multi_class'", "scikit-learn below 1.8"),
]
WHOLE_FILE = "(the file)"  # the name of the result of a file that does not load
SCRIPT = "script"  # the name of a script's only result
GRACE = 60.0  # seconds that a process has to report what it has, after its time


@dataclass
class Result:
    """What came of a job.

    Attributes:
        outcomes: by name of the test: passed, failed, skipped or not run. A script has one.
        messages: of failed tests, in a line.
        note: about all of it.
        seconds: wall time.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    note: str = ""
    seconds: float = 0.0


def execute(job: Job, mode: str, limit: float, keep: Path | None, python: Path = Path(sys.executable)) -> Result:
    """Run a job, or read what is kept of it.

    Args:
        job: what to run.
        mode: ``"plain"``, ``"swapped"``, or ``"own"`` in a Python without manyhop.
        limit: seconds.
        keep: a folder of results and outputs.
        python: which one runs it.
    """
    if job.why_not:
        return Result({SCRIPT: NOT_RUN}, note=f"needs {job.why_not}")
    where = f".{job.gpus}-gpus" if job.gpus else ""
    kept = keep / f"{job.version}_{job.name.replace('/', '_')}{where}.{mode}.json" if keep else None
    if kept and kept.exists():
        return Result(**json.loads(kept.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        run = _run_one_by_one if job.tests and job.project in ONE_BY_ONE else _run
        result, output = run(job, mode, limit, Path(folder), python)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(result)))
        kept.with_suffix(".txt").write_text(output)
    return result


def _run_one_by_one(job: Job, mode: str, limit: float, folder: Path, python: Path) -> tuple[Result, str]:
    """Run each test of a file in a process of its own; ``limit`` holds for each."""
    listed, output = _run(job, mode, limit, folder, python, ["--collect-only"])
    tests = re.findall(r"^\S+?\.py::(\S.*)$", output, flags=re.MULTILINE)
    if not tests:
        return listed, output
    found, outputs = Result(), []
    for test in tests:
        result, output = _run(job, mode, limit, folder, python, test=test)
        outcome = result.outcomes.get(WHOLE_FILE, next(iter(result.outcomes.values()), FAILED))
        found.outcomes[test] = outcome
        if outcome == FAILED:
            found.messages[test] = next(iter(result.messages.values()), "no result")
        found.seconds += result.seconds
        found.note = result.note or found.note
        outputs.append(output)
    return found, "\n".join(outputs)


def _run(
    job: Job, mode: str, limit: float, folder: Path, python: Path, options: Sequence[str] = (), test: str = ""
) -> tuple[Result, str]:
    file, report = job.repo / job.path, folder / "report.xml"
    report.unlink(missing_ok=True)
    if job.tests:
        what = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--tb=short", f"--junit-xml={report}"]
        what += ["-o", "addopts=", "-m", "not rag and not dataset", *options, f"{file}::{test}" if test else str(file)]
    else:
        if job.graphbolt:
            _stand_ins_of_graphbolt(folder)
        what = [str(as_script(file, folder)), *job.arguments]
    command = [str(python), str(INSIDE), LIBRARY[job.project], mode, *what]
    start = time.monotonic()
    output, status = _process(command, _environment(job), folder, limit)
    seconds = time.monotonic() - start
    result = _of_tests(report, status, output) if job.tests else of_script(status, output, job.gpus)
    result.seconds = round(seconds, 1)
    return result, output


def _environment(job: Job) -> dict[str, str]:
    path = [str(job.repo / IMPORTED_FROM[job.project])] if job.project in IMPORTED_FROM else []
    path += [str(INSIDE.parent), os.environ.get("PYTHONPATH", "")]  # also for processes that scripts start
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "DGLBACKEND": "pytorch", "MPLBACKEND": "Agg"}
    ours |= {"TORCH_COMPILE_DISABLE": "1"}  # compiling takes minutes, and is about models
    return os.environ | ours | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def _process(command: list[str], environment: dict[str, str], folder: Path, limit: float) -> tuple[str, int | None]:
    """Output and exit status, which is ``None`` beyond the time limit."""
    with open(folder / "output.txt", "w+b") as output:
        options = {"env": environment, "cwd": folder, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.send_signal(signal.SIGINT)  # pytest then reports what it has
                process.wait(GRACE)
        finally:
            _end(process)
        output.seek(0)
        return output.read().decode(errors="replace"), status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stand_ins_of_graphbolt(folder: Path) -> None:
    import stand_ins_graphbolt

    stand_ins_graphbolt.write(folder / "datasets")


def as_script(file: Path, folder: Path) -> Path:
    """A notebook's cells, one after the other; a script is one already."""
    if file.suffix != ".ipynb":
        return file
    cells = [cell["source"] for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell).splitlines()]
    script = folder / f"{file.stem}.py"
    script.write_text("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines))
    return script


def _of_tests(report: Path, status: int | None, output: str) -> Result:
    result = Result()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag: child.get("message") or "" for child in case}
            # A file that cannot be collected has a case without a class.
            name = case.get("name", "") if case.get("classname") else WHOLE_FILE
            bad = kinds.get("failure", kinds.get("error"))
            result.outcomes[name] = FAILED if bad is not None else SKIPPED if "skipped" in kinds else PASSED
            if bad is None:
                continue
            error = re.findall(r"^E   ?(\S.*)", "".join(case.itertext()), flags=re.MULTILINE)
            message = error[-1] if bad == "collection failure" and error else bad
            if missing := _missing("\n".join([*error, bad])):
                result.outcomes[name], result.note = NOT_RUN, f"some need {missing}"
            else:
                result.messages[name] = _line(message)
        if status is None:
            result.note = "stopped by the time limit"
            result.outcomes[WHOLE_FILE] = FAILED
            result.messages[WHOLE_FILE] = result.note
    else:
        result.outcomes[WHOLE_FILE] = FAILED
        result.messages[WHOLE_FILE] = "time limit" if status is None else _last_line(output)
    return result


def of_script(status: int | None, output: str, gpus: int = 0) -> Result:
    if status == 0:
        return Result({SCRIPT: PASSED})
    if status is None:
        epochs = len(set(re.findall(r"\bepoch\D{0,4}(\d+)", output, flags=re.IGNORECASE)))
        if epochs > 1:  # the second one has begun
            return Result({SCRIPT: PASSED}, note=f"stopped by the time limit in epoch {epochs}")
        return Result({SCRIPT: FAILED}, {SCRIPT: "time limit before the first epoch ended"})
    if missing := _missing(output, gpus):
        return Result({SCRIPT: NOT_RUN}, note=f"needs {missing}")
    return Result({SCRIPT: FAILED}, {SCRIPT: _last_line(output)})


def _missing(output: str, gpus: int = 0) -> str:
    """Return what the machine lacks, by the output of what failed; empty if nothing is known to be."""
    packages = re.findall(r"No module named '(\w+)", output)
    if packages and importlib.util.find_spec(packages[-1]) is None:
        return f"the package {packages[-1]}"
    return next((why for pattern, why in WHY_NOT[1 if gpus else 0 :] if re.search(pattern, output)), "")


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if re.match(r"\w[\w.]*(Error|Exception|Warning|Interrupt)\b", line)]
    return _line(lines[-1] if lines else (output.strip().splitlines() or ["no output"])[-1])


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
