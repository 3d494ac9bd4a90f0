"""Compare the accuracy of the examples with manyhop's loaders, with PyG's, and without the graph, over several seeds.

    python examples/compare_loaders.py            # about an hour on two cores; needs torch-sparse or pyg-lib
    python examples/compare_loaders.py --processes 1 2 4     # manyhop, by the number of processes
    python examples/compare_loaders.py --accelerated --seeds 2 --only genre

PyG's column runs the same script with the import changed and without features that PyG's loaders lack: see WITHOUT."""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent
NODES, LINKS = "pyg_node_classification.py", "pyg_link_prediction.py"
TASKS = {
    "genre of a film, accuracy": (NODES, "movies"),
    "who plays in a film, AUC": (LINKS, "movies"),
}
OURS, PYGS, ALONE = "manyhop", "PyG's loader", "without the graph"
ACCELERATED = "accelerate(model, trim=True)"
WITHOUT = (  # manyhop's code in a script, and PyG's in its place
    (r"from manyhop_pyg import (\w+), share", r"from torch_geometric.loader import \1\nshare = lambda load: load()"),
    (r"shared \|= .*\n", ""),
    (r"\[~batch.is_padding\]| if not batch.is_padding.any\(\)", ""),
    (r"train_loader.stats\(\)", '""'),
)
FASTER = (("pyg import ", "pyg import accelerate, "), (r"(\nmodel = GraphSAGE\(.*\n)", rf"\1{ACCELERATED}\n"))


def changed(source: str, changes: tuple[tuple[str, str], ...]) -> str:
    """A script of ours with PyG's loader, or with an accelerated model."""
    for pattern, replacement in changes:
        source, count = re.subn(pattern, replacement, source)
        assert count == 1, pattern
    return source


def score(column: str, task: str, seed: int) -> float:
    """What a script prints in the end."""
    script, dataset = TASKS[task]
    source = (EXAMPLES / script).read_text()
    arguments = ["--dataset", dataset, "--seed", str(seed), "--device", "cpu", *["--no-graph"] * (column == ALONE)]
    source = changed(source, {PYGS: WITHOUT, ACCELERATED: FASTER}.get(column, ()))
    command = [sys.executable, "-W", "ignore", "-c", source, *arguments]
    if "process" in column:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", column.split()[0]]
        command = [sys.executable, *torchrun, str(EXAMPLES / script), *arguments]
    run = subprocess.run(command, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True, check=True)
    return float(re.findall(r"^test \w+ (\S+) in the best epoch", run.stdout, flags=re.MULTILINE)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--only", default="", help="tasks whose name begins like this")
    parser.add_argument("--processes", type=int, nargs="+", help="ours only, with these numbers of processes")
    parser.add_argument("--accelerated", action="store_true", help="ours only, with layers as they are and accelerated")
    args = parser.parse_args()
    tasks = [task for task in TASKS if task.startswith(args.only)]
    if args.seeds < 2 or not tasks:
        parser.error(f"expected --seeds from 2 on and --only of {list(TASKS)}, got {args.seeds} and {args.only!r}")
    columns = [OURS, ACCELERATED] if args.accelerated else [OURS, PYGS, ALONE]
    if args.processes:
        columns = [f"{number} process{'es' if number > 1 else ''}" for number in args.processes]
    print("| task | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|", flush=True)
    for task in tasks:
        cells = []
        for column in columns:
            scores = [score(column, task, seed) for seed in range(args.seeds)]
            cells.append(f"{statistics.mean(scores):.3f} ± {statistics.stdev(scores):.3f}")
            print(f"{task}, {column}: {scores}", file=sys.stderr, flush=True)
        print(f"| {task} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
