"""``python -m manyhop_dgl train.py ARGS`` or ``python -m manyhop_dgl -m package.module ARGS``.

Runs a script or a module as ``python`` would, after ``manyhop_dgl.install()``: DGL's loaders and samplers in it are
manyhop's. Processes that it starts through ``multiprocessing``, ``torch.multiprocessing.spawn`` included, have them as
well; those that are started as commands of their own need it in the command (``torchrun -m manyhop_dgl train.py``).
"""

from manyhop.loading import run_as_main
from manyhop_dgl import install


def main() -> None:
    """Run the script or module of the command line, and exit with its status."""
    run_as_main("manyhop_dgl", "DGL", install, __file__)


if __name__ == "__main__":
    main()
