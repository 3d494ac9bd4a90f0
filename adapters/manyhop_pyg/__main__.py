"""``python -m manyhop_pyg train.py ARGS`` or ``python -m manyhop_pyg -m package.module ARGS``.

Runs a script or a module like ``python``, after ``manyhop_pyg.install()``, which replaces PyG's loaders, also in
processes that ``multiprocessing`` or ``torch.multiprocessing.spawn`` starts. Separate commands need it themselves
(``torchrun -m manyhop_pyg train.py``).
"""

from manyhop.loading import run_as_main
from manyhop_pyg import install


def main() -> None:
    """Run the script or module of the command line, with its exit code."""
    run_as_main("manyhop_pyg", "PyG", install, __file__)


if __name__ == "__main__":
    main()
