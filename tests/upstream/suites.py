"""What is run of a checkout: tests, example scripts and notebooks of PyG and DGL, tests of projects that use them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

TITLES = {"pyg": "PyG", "dgl": "DGL", "relbench": "RelBench", "graphstorm": "GraphStorm"}
LIBRARY = {"pyg": "pyg", "dgl": "dgl", "relbench": "pyg", "graphstorm": "dgl"}
"""Project -> the library whose classes are swapped."""
IMPORTED_FROM = {"dgl": "tests", "relbench": ".", "graphstorm": "python"}
"""Project -> folder of the checkout that its tests import from."""
ONE_BY_ONE = {"graphstorm"}
"""Projects whose tests need a process each: several initialize the process group, at a port of their own."""
TESTS = {
    "pyg": (
        "test/loader/test_*.py",
        "test/sampler/test_*.py",
        "test/data/lightning/test_*.py",
        "test/nn/models/test_basic_gnn.py",
        "test/utils/test_trim_to_layer.py",
    ),
    "dgl": (
        "tests/python/pytorch/dataloading/test_*.py",
        "tests/python/pytorch/graphbolt/**/test_*.py",
        "tests/python/pytorch/sparse/test_*.py",
    ),
    "relbench": ("test/modeling/test_*.py",),
    "graphstorm": tuple(f"tests/unit-tests/test_{name}.py" for name in ("dataloading", "gnn", "nn_encoder", "trainer")),
}
SCRIPTS: dict[str, tuple[str, ...]] = {
    "pyg": ("examples/**/*.py",),
    "dgl": ("examples/**/*.py", "notebooks/**/*.ipynb", "tutorials/**/*.py"),
}
# A script is run if it uses something that is swapped.
USES = {
    "pyg": re.compile(r"\b((Link)?NeighborLoader|HGTLoader|LinkLoader|NodeLoader|Lightning(Node|Link)Data)\b"),
    "dgl": re.compile(
        r"graphbolt|NeighborSampler|LaborSampler|edge_prediction_sampler|dgl\.dataloading\.DataLoader|dgl\.sparse"
        r"|from dgl\.dataloading import[^)]*\bDataLoader"
    ),
}
# Files that cannot run here whatever the loaders are, and helpers of scripts. Reasons that the output of a script shows
# (no GPU, a package that is missing, no network) are found by themselves: see `execute.WHY_NOT`.
NOT_RUN = {
    "pyg/examples/distributed/": "several machines",
    "pyg/examples/multi_gpu/": "several GPUs",
    "pyg/examples/quiver/": "a GPU",
    "pyg/examples/llm/": "language models",
    "dgl/examples/distributed/": "several machines",
    "dgl/examples/multigpu/": "several GPUs",
    "dgl/examples/pytorch/multigpu/": "several GPUs",
    "dgl/examples/graphbolt/pyg/multigpu/": "several GPUs",
    "dgl/examples/pytorch/graphsage/dist/": "several machines",
    "dgl/examples/pytorch/rgcn/experimental/": "several machines",
    "dgl/examples/pytorch/rgcn/entity_sample_multi_gpu.py": "several GPUs",
    "dgl/examples/pytorch/vrgcn/train_cv_multi_gpu.py": "several GPUs",
    "dgl/examples/advanced/cugraph/": "a GPU",
    "dgl/examples/pytorch/ogb_lsc/": "a dataset of 200 GB",
    "dgl/notebooks/stochastic_training/multigpu_node_classification.ipynb": "several GPUs",
    "dgl/tutorials/dist/": "several machines",
    "dgl/tutorials/multi/": "several GPUs",
}
# A script's own arguments, for a CPU and few epochs.
ARGUMENTS = {
    "pyg/examples/ogbn_train.py": "--epochs 2 --local_epochs 2 --num_workers 0 --hidden_channels 16 --model sage",
    "dgl/examples/core/rgcn/hetero_rgcn.py": "--num_gpus 0",
    "dgl/examples/graphbolt/disk_based_feature/node_classification.py": "--epochs 2 --mode cpu-cpu-cpu",
    "dgl/examples/graphbolt/lightning/node_classification.py": "--epochs 2 --num_gpus 0",
    "dgl/examples/graphbolt/link_prediction.py": "--epochs 2 --mode cpu-cpu",
    "dgl/examples/graphbolt/node_classification.py": "--epochs 2 --mode cpu-cpu",
    "dgl/examples/graphbolt/pyg/hetero/node_classification.py": "--epochs 2 --mode cpu-cpu-cpu --num-hidden 64",
    "dgl/examples/graphbolt/pyg/labor/node_classification.py": "--epochs 2 --mode cpu-cpu-cpu",
    "dgl/examples/graphbolt/pyg/link_prediction.py": "--epochs 2 --mode cpu-cpu-cpu",
    "dgl/examples/graphbolt/pyg/node_classification.py": "--epochs 2",
    "dgl/examples/graphbolt/pyg/node_classification_advanced.py": "--epochs 2 --mode cpu-cpu-cpu",
    "dgl/examples/graphbolt/rgcn/hetero_rgcn.py": "--num_epochs 2 --num_gpus 0",
    "dgl/examples/legacy/link_prediction.py": "--mode cpu",
    "dgl/examples/legacy/node_classification.py": "--mode cpu",
    "dgl/examples/pytorch/argo/ogb_example.py": "--gpu -1 --num-epochs 2",
    "dgl/examples/pytorch/argo/ogb_example_ARGO.py": "--gpu -1 --num-epochs 2",
    "dgl/examples/pytorch/graphsage/advanced/train_lightning_unsupervised.py": "--gpu -1 --num-epochs 2",
    "dgl/examples/pytorch/graphsage/link_pred.py": "--mode cpu",
    "dgl/examples/pytorch/graphsage/node_classification.py": "--mode cpu",
    "dgl/examples/pytorch/labor/train_lightning.py": "--num-epochs 2",
    "dgl/examples/pytorch/ogb/ogbn-mag/hetero_rgcn.py": "--runs 1",
    "dgl/examples/pytorch/ogb/ogbn-products/gat/gat.py": "--cpu --n-runs 1 --n-epochs 2",
    "dgl/examples/pytorch/ogb/ogbn-products/gat/main.py": "--gpu -1 --num-epochs 2",
    "dgl/examples/pytorch/ogb/ogbn-products/graphsage/main.py": "--gpu -1 --num-epochs 2",
    "dgl/examples/pytorch/ogb/ogbn-products/mlp/mlp.py": "--cpu --n-runs 1 --n-epochs 2",
    "dgl/examples/pytorch/ogb/ogbn-proteins/gat.py": "--cpu --n-runs 1 --n-epochs 2",
    "dgl/examples/pytorch/rgcn-hetero/entity_classify_mb.py": "-d aifb --n-epochs 2",
    "dgl/examples/pytorch/rgcn/entity_sample.py": "--dataset aifb",
    "dgl/examples/sparse/hetero-rgcn.py": "-d aifb",
    "dgl/examples/pytorch/vrgcn/train_cv.py": "--gpu -1 --num-epochs 2",
}

# What is run on GPUs, and its arguments: "{devices}" is "0" or "0,1", "{gpus}" their number. These scripts need not use
# something that is swapped: on a GPU, all graphs of DGL are on torch tensors. Not run are scripts that fail on any GPU:
# ogbn-products/gat/gat.py indexes a tensor on the CPU by ids on the GPU.
ON_GPUS = {
    "dgl/examples/core/gat/train.py": "--num_gpus 1 --num_epochs 20",
    "dgl/examples/core/graphsage/node_classification.py": "",
    "dgl/examples/core/rgcn/hetero_rgcn.py": "--num_gpus 1",
    "dgl/examples/graphbolt/link_prediction.py": "--epochs 2",
    "dgl/examples/graphbolt/node_classification.py": "--epochs 2",
    "dgl/examples/graphbolt/quickstart/node_classification.py": "",
    "dgl/examples/graphbolt/rgcn/hetero_rgcn.py": "--num_epochs 2 --num_gpus 1",
    "dgl/examples/graphbolt/sparse/graphsage.py": "",
    "dgl/examples/legacy/link_prediction.py": "",
    "dgl/examples/legacy/node_classification.py": "",
    "dgl/examples/pytorch/gat/train.py": "",
    "dgl/examples/pytorch/gcn/train.py": "--dt bfloat16",
    "dgl/examples/pytorch/graphsage/link_pred.py": "",
    "dgl/examples/pytorch/graphsage/node_classification.py": "",
    "dgl/examples/pytorch/graphsage/train_full.py": "",
    "dgl/examples/pytorch/ogb/ogbn-mag/hetero_rgcn.py": "--runs 1",
    "dgl/examples/pytorch/ogb/ogbn-proteins/gat.py": "--gpu 0 --n-runs 1 --n-epochs 2",
    "dgl/examples/pytorch/rgat/train.py": "",
    "dgl/examples/pytorch/rgcn-hetero/entity_classify.py": "-d aifb --gpu 0 --n-epochs 5",
    "dgl/examples/pytorch/rgcn-hetero/entity_classify_heteroAPI.py": "-d aifb --gpu 0 --n-epochs 5",
    "dgl/examples/pytorch/rgcn-hetero/entity_classify_mb.py": "-d aifb --gpu 0 --n-epochs 2",
    "dgl/examples/pytorch/rgcn/entity.py": "",
    "dgl/examples/pytorch/rgcn/entity_sample.py": "",
    "dgl/examples/pytorch/rgcn/link.py": "",
    **{
        f"dgl/examples/sparse/{name}.py": ""
        for name in ("appnp", "c_and_s", "gat", "gcn", "gcnii", "sampling/graphsage", "sgc", "sign", "twirls")
    },
    "dgl/examples/multigpu/graphbolt/node_classification.py": "--gpu {devices} --epochs 2 --batch-size 32",
    "dgl/examples/multigpu/node_classification_sage.py": "--gpu {devices} --num_epochs 2",
    "dgl/examples/pytorch/multigpu/multi_gpu_link_prediction.py": "--gpu {devices}",
    "dgl/examples/pytorch/multigpu/multi_gpu_node_classification.py": "--gpu {devices}",
    "dgl/examples/pytorch/rgcn/entity_sample_multi_gpu.py": "--gpu {devices}",
}


@dataclass(frozen=True)
class Job:
    """A file of tests, a script or a notebook.

    Attributes:
        project: a key of ``TITLES``.
        repo: the checkout.
        version: of the checkout: its tag or commit.
        path: of the file, in the checkout.
        tests: whether pytest runs it.
        arguments: of a script.
        why_not: what is missing to run it; empty if nothing is known to be.
        gpus: how many it runs on.
    """

    project: str
    repo: Path
    version: str
    path: str
    tests: bool
    arguments: tuple[str, ...] = ()
    why_not: str = ""
    gpus: int = 0

    @property
    def name(self) -> str:
        """The file as results and expectations name it."""
        return f"{self.project}/{self.path}"

    @property
    def graphbolt(self) -> bool:
        """Whether it needs ``dgl.graphbolt``."""
        text = (self.repo / self.path).read_text() if self.project == "dgl" else ""
        return re.search(r"import (dgl\.)?graphbolt|from dgl\.graphbolt", text) is not None


def jobs(project: str, repo: Path) -> list[Job]:
    """All there is to run of a checkout."""
    found = []
    for tests, patterns in ((True, TESTS[project]), (False, SCRIPTS.get(project, ()))):
        for file in sorted({file for pattern in patterns for file in repo.glob(pattern)}):
            if tests or _is_script(project, file):
                found.append(_job(project, repo, file.relative_to(repo).as_posix(), tests))
    return found


def jobs_on_gpus(project: str, repo: Path, gpus: int) -> list[Job]:
    """All there is to run of a checkout on GPUs; on several, the scripts that take several."""
    how = {"devices": ",".join(map(str, range(gpus))), "gpus": gpus}
    found = []
    for name, arguments in ON_GPUS.items():
        path = name.removeprefix(f"{project}/")
        if path != name and (repo / path).exists() and (gpus == 1 or "{" in arguments):
            words = tuple(arguments.format(**how).split())
            found.append(Job(project, repo, version(repo), path, tests=False, arguments=words, gpus=gpus))
    return found


def _is_script(project: str, file: Path) -> bool:
    text = file.read_text()
    runs = file.suffix == ".ipynb" or "__main__" in text or not re.search(r"^(class|def) ", text, flags=re.MULTILINE)
    runs = runs or re.search(r"^(for|while) .*epoch", text, flags=re.MULTILINE) is not None
    return runs and USES[project].search(text) is not None


def _job(project: str, repo: Path, path: str, tests: bool) -> Job:
    name = f"{project}/{path}"
    why_not = next((reason for prefix, reason in NOT_RUN.items() if name.startswith(prefix)), "")
    return Job(project, repo, version(repo), path, tests, tuple(ARGUMENTS.get(name, "").split()), why_not)


def version(repo: Path) -> str:
    """Tag of a checkout, or its commit; its folder's name if it is none."""
    for command in (("describe", "--tags", "--exact-match"), ("rev-parse", "--short", "HEAD")):
        done = subprocess.run(["git", "-C", str(repo), *command], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return repo.name
