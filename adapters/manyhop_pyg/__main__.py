"""``python -m manyhop_pyg train.py ARGS`` or ``python -m manyhop_pyg -m package.module ARGS``.

Runs a script or a module as ``python`` would, after ``manyhop_pyg.install()``: PyG's loaders in it are manyhop's.
Processes that it starts through ``multiprocessing``, ``torch.multiprocessing.spawn`` included, have them as well; those
that are started as commands of their own need it in the command (``torchrun -m manyhop_pyg train.py``).
"""

from manyhop.loading import run_as_main
from manyhop_pyg import install


def main() -> None:
    """Run what the command line names; exits as that does."""
    run_as_main("manyhop_pyg", "PyG", install, __file__)


if __name__ == "__main__":
    main()
