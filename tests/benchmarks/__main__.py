"""``benchmarks TARGET``."""

import os
import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parents[1])
sys.path[0] = FOLDER
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (FOLDER, os.environ.get("PYTHONPATH"))))  # of the processes

if __name__ == "__main__":
    from benchmarks.cli import main

    sys.exit(main())
