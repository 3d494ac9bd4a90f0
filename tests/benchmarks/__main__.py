"""``python tests/benchmarks TARGET``: measure something, and print it as markdown; ``--output DIR`` also saves it."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

TARGETS = {
    "cpu": "sampling and loading on the CPU, beside PyG",
    "start": "from the import to the first batch",
    "dgl": "samplers and DataLoaders beside DGL's",
    "gpu": "sampling, gathers, loaders, stores and epochs on NVIDIA GPUs, beside RAPIDS, torch and PyG",
    "step": "training steps and layers on a GPU, eager and captured",
    "exchange": "rows from other nodes, beside an all-to-all",
    "embeddings": "updates of trainable rows",
}
SEVERAL_THREADS = ("gpu", "step", "exchange")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "\n".join(f"  {name:12}{text}" for name, text in TARGETS.items())
    parser.add_argument("target", choices=TARGETS)
    target = parser.parse_args(argv[:1]).target
    if target not in SEVERAL_THREADS:  # torch reads these when it is imported, ranks inherit them
        os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    module = import_module(f"benchmarks.{target}.command" if target == "gpu" else f"benchmarks.{target}")
    parser = argparse.ArgumentParser(prog=f"benchmarks {target}", description=TARGETS[target])
    module.arguments(parser)
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save what is printed")
    module.main(parser.parse_args(argv[1:]), list(argv))


if __name__ == "__main__":
    folder = str(Path(__file__).resolve().parents[1])
    sys.path[0] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))  # of processes
    main(sys.argv[1:])
