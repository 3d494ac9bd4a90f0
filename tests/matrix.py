"""Run `make quick` with other versions of torch, PyG and Python, each in an environment of its own, and print a table.

    python tests/matrix.py [--only torch-2.6 ...] [--folder DIR] [--keep]

An environment of PyPI's torch takes about 6 GB; it is removed after its row, unless --keep is given. A row whose Python
is not on the PATH (python3.12, ...) is not run, and says so. Exits with 1 if a row fails.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = {
    "torch-2.6": ("3.11", {"torch": "2.6.0", "torch_geometric": "2.6.1", "numpy": "2.0.2", "numba": "0.61.0"}),
    "torch-2.8": ("3.12", {"torch": "2.8.0", "torch_geometric": "2.7.0"}),
    "torch-2.11": ("3.12", {"torch": "2.11.0", "torch_geometric": "2.8.0"}),
    "torch-2.13": ("3.11", {"torch": "2.13.0", "torch_geometric": "2.8.1"}),
    "torch-2.15": ("3.13", {"torch": "2.15.0", "torch_geometric": "2.8.1"}),
    "python-3.14": ("3.14", {"torch": "2.15.0", "torch_geometric": "2.8.1"}),
}
"""Name -> Python, and the versions that are pinned; pip chooses the others."""

SHOWN = ("torch", "torch_geometric", "numpy", "numba", "triton", "dgl")
HEAD = ["| row | Python | " + " | ".join(SHOWN) + " | `make quick` | minutes |", "|" + "---|" * (len(SHOWN) + 4)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(ROWS), default=list(ROWS), help="run these rows alone")
    parser.add_argument("--folder", type=Path, help="where the environments are made (a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the environments, and use them again")
    options = parser.parse_args()
    failed = False
    print("\n".join(HEAD), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for name in options.only:
            print(f"== {name}", file=sys.stderr, flush=True)
            line, good = run(name, folder)
            print(line, flush=True)
            failed |= not good
            if not options.keep:
                shutil.rmtree(folder / name, ignore_errors=True)
    return int(failed)


def run(name: str, folder: Path) -> tuple[str, bool]:
    """Run one row; returns its line of the table, and whether it is not a failure."""
    python, pins = ROWS[name]
    found = shutil.which(f"python{python}")
    if found is None:
        return f"| {name} | {python} |" + " |" * len(SHOWN) + f" not run: no python{python} on the PATH | |", True
    environment = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / f"{name}.txt"
    constraints.write_text("".join(f"{package}=={version}\n" for package, version in pins.items()))
    command = ["make", f"PYTHON={found}", f"VENV={environment}", f"CONSTRAINTS={constraints}", "quick"]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True)
    minutes = (time.monotonic() - begin) / 60
    (folder / f"{name}.log").write_text(done.stdout + done.stderr)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", done.stdout)
    result = ", ".join(counts) or f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    versions = installed(environment)
    cells = [name, python, *(versions.get(package, "-") for package in SHOWN), result, f"{minutes:.0f}"]
    return f"| {' | '.join(cells)} |", done.returncode == 0


def installed(environment: Path) -> dict[str, str]:
    """The versions of all packages of an environment."""
    command = [environment / "bin" / "python", "-m", "pip", "list", "--format=freeze"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {line.partition("==")[0].replace("-", "_"): line.partition("==")[2] for line in out.splitlines()}


if __name__ == "__main__":
    sys.exit(main())
