"""The accuracy of the examples with manyhop's loaders, with PyG's own, and without the graph, over several seeds.

    python examples/compare_loaders.py            # about an hour on two cores; needs torch-sparse or pyg-lib
    python examples/compare_loaders.py --seeds 2 --only "genre of a film"

PyG's row runs the same script with the import changed. Prints a table in Markdown.
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

NODES, LINKS = "pyg_node_classification.py", "pyg_link_prediction.py"
TASKS = {
    "genre of a film, accuracy": (NODES, "movies"),
    "who plays in a film, AUC": (LINKS, "movies"),
    "section of a package, accuracy": (NODES, "debian"),
}
OURS, PYGS, ALONE = COLUMNS = ("manyhop", "PyG's loader", "without the graph")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--seeds", type=int, default=5, help="how many")
parser.add_argument("--only", default="", help="tasks whose name begins like this")
args = parser.parse_args()


def score(column: str, task: str, seed: int) -> float:
    script, dataset = TASKS[task]
    source = (Path(__file__).parent / script).read_text()
    if column == PYGS:
        source = source.replace("from manyhop_pyg import", "from torch_geometric.loader import")
        source = re.sub(r"^print\(.*stats\(\)\)$", "", source, flags=re.MULTILINE)
    arguments = ["--dataset", dataset, "--seed", str(seed), *(["--no-graph"] if column == ALONE else [])]
    command = [sys.executable, "-W", "ignore", "-c", source, *arguments]
    run = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True)
    return float(re.findall(r"^test \w+ (\S+) in the best epoch", run.stdout, flags=re.MULTILINE)[0])


print("| task | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|", flush=True)
for task in (task for task in TASKS if task.startswith(args.only)):
    cells = []
    for column in COLUMNS:
        scores = [score(column, task, seed) for seed in range(args.seeds)]
        cells.append(f"{statistics.mean(scores):.3f} ± {statistics.stdev(scores):.3f}")
        print(f"{task}, {column}: {scores}", file=sys.stderr, flush=True)
    print(f"| {task} | " + " | ".join(cells) + " |", flush=True)
