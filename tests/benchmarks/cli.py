"""``python tests/benchmarks``: its targets and their arguments."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.names import BUILD, CONTENDERS, PARTS, STEP_PARTS, WORKLOADS
from manyhop.errors import InputError, MissingExtraError
from manyhop.system.units import parse_bytes
from manyhop_tools.cli.verbs import Parser, Run, Verbs, add_verb, at_least_one, run_verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python tests/benchmarks`` with ``argv`` (default: the process's own arguments); returns the exit status."""
    parser = Parser(prog="benchmarks")
    _add_targets(parser)
    return run_verb(parser, argv)


def _add_targets(parser: Parser) -> None:
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET", parser_class=Parser)
    on_gpus = _add_gpu, _add_step
    of_ranks = _add_ranks, _add_exchange, _add_partition, _add_cooperative, _add_cluster
    for add in (_add_cpu, _add_start, _add_dgl, *on_gpus, *of_ranks, _add_disk, _add_embeddings):
        add(targets)


def _arguments(args: argparse.Namespace) -> list[str]:
    """Return the arguments after the target, which records name."""
    return list(args.argv[args.argv.index(args.target) + 1 :])


def _measure(module: str, *, one_thread: bool = True) -> Run:
    """Return what runs ``main`` of a module, which is imported then: command lines are read without torch.

    Args:
        module: its name in this package.
        one_thread: whether OpenMP gets one thread.
    """

    def run(args: argparse.Namespace) -> int:
        if one_thread:
            _one_thread()
        status: int = import_module(f"benchmarks.{module}").main(args, _arguments(args))
        return status

    return run


def _one_thread() -> None:
    """Give OpenMP one thread, which does not spin: a row of a table names the threads that it was measured with.

    torch reads this when it is imported, ranks inherit it.
    """
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")


def _add_cpu(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "cpu",
        _measure("cpu.command"),
        help="sampling and loading on the CPU",
        description="Measure manyhop beside what of PyG, DGL and GraphBolt can be imported, on random power-law "
        "graphs: sampling alone, whole loaders without and with features, and building the topology. PyG samples with "
        "pyg-lib where it finds it, otherwise with torch-sparse.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a minute: 200 000 nodes, 3 million edges, fewer rounds")
    size.add_argument("--large", action="store_true", help="10 million nodes, 150 million edges; needs 13 GiB")
    parser.add_argument(
        "--threads", type=at_least_one, default=2, metavar="N", help="measure with 1 and N threads (default: 2)"
    )
    parser.add_argument("--only", choices=(*WORKLOADS, BUILD), help="measure this workload alone")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the tables (markdown) and a plot (SVG)")


def _add_start(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "start",
        _measure("start.command"),
        help="from the import to the first batch",
        description="Measure what new processes take to import manyhop, to make a loader over a small graph and to "
        "get its first batch, where kernels have to be compiled and where they lie on disk, beside PyG's own loader.",
    )
    parser.add_argument("--rounds", type=at_least_one, default=9, metavar="N", help="processes of each (default: 9)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the table (markdown)")


def _add_dgl(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "dgl",
        _run_dgl,
        help="beside DGL, on the CPU or on a GPU",
        description="Measure samplers and DataLoaders beside those of DGL, on a random power-law graph (R-MAT).",
    )
    parser.add_argument("--quick", action="store_true", help="a minute: 131 072 nodes, 1.5 million edges, fewer rounds")
    parser.add_argument(
        "--gpu", action="store_true", help="measure loaders that feed a GPU, and training steps with DGL's layers"
    )
    parser.add_argument(
        "--threads", type=at_least_one, default=2, metavar="N", help="measure with 1 and N threads (default: 2)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the tables (markdown) and a plot (SVG)")


def _run_dgl(args: argparse.Namespace) -> int:
    _one_thread()
    import torch

    try:
        from benchmarks.dgl.command import main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", "benchmarks dgl") from None
    if args.gpu and not torch.cuda.is_available():
        raise InputError("Expected a CUDA device for --gpu, found none. Leave --gpu out to measure the CPU.")
    return main(args, _arguments(args))


def _add_gpu(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "gpu",
        _measure("gpu.command", one_thread=False),
        help="everything on NVIDIA GPUs",
        description="Measure manyhop on NVIDIA GPUs beside WholeGraph, pylibcugraph, cuGraph-PyG, torch and PyG's own "
        "loader, as far as they are installed: sampling, gathering of rows, loaders with features, GraphSAGE epochs. "
        "Graphs are R-MAT, made on the GPU. Limits of the hardware are measured in the same run.",
    )
    parser.add_argument("--only", nargs="+", choices=PARTS[1:], help="measure these parts alone")
    parser.add_argument("--contenders", nargs="+", choices=tuple(CONTENDERS), help="measure these alone")
    parser.add_argument("--gpus", type=int, nargs="+", metavar="N", help="numbers of GPUs (default: 1, and all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="1 million nodes, 17 million edges, fewer rounds")
    size.add_argument("--papers", action="store_true", help="111 million nodes, 1.6 billion edges, float16 features")
    parser.add_argument(
        "--side-by-side", action="store_true", help="measure at the same time what needs fewer GPUs than there are"
    )
    parser.add_argument("--timeout", type=int, default=300, metavar="S", help="seconds for each contender (300)")
    parser.add_argument(
        "--budget",
        type=float,
        default=math.inf,
        metavar="S",
        help="seconds for all, divided among the numbers of GPUs (no limit)",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save gpu.json, gpu.md and gpu.svg")
    parser.add_argument("--saved", type=Path, nargs="+", metavar="JSON", help="measure nothing: join saved records")


def _add_step(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "step",
        _measure("step.command", one_thread=False),
        help="training steps and layers on a GPU",
        description="Measure layers, forward and backward, and training steps of a GraphSAGE with loading: eagerly and "
        "captured, with PyG's aggregation and with manyhop's; and what accuracy both reach. Without a GPU, all runs "
        "eagerly on the CPU in smaller sizes, within about two minutes.",
    )
    parser.add_argument("--only", nargs="+", choices=STEP_PARTS, help="measure these parts alone")
    parser.add_argument("--rounds", type=at_least_one, default=9, metavar="N", help="turns of each (default: 9)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the tables (step.md)")


def _add_ranks(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "ranks",
        _measure("ranks.command"),
        help="epochs under DDP",
        description="Measure epochs of a GraphSAGE model under DDP: manyhop's loader over shared memory with "
        "distributed=True beside PyG's own with torch-sparse, where every rank loads the data and takes its part of "
        "the seeds. Each is started by torchrun, in turns. Memory is counted once where ranks share it.",
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], metavar="W", help="world sizes (default: 1 2)")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=15_000_000)
    parser.add_argument("--features", type=int, default=128, help="float32 features per node (default: 128)")
    parser.add_argument("--seeds", type=int, default=20_480, help="seed nodes of an epoch (default: 20480)")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch of one rank (default: 1024)")
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10], help="neighbours per hop (default: 10 10)")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of every rank's loader (default: 0)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs per turn (default: 3)")
    parser.add_argument("--rounds", type=int, default=2, help="turns (default: 2)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the table (markdown)")


def _add_exchange(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "exchange",
        _measure("ranks.exchange", one_thread=False),
        help="rows from other nodes",
        description="Measure the exchange of feature rows between nodes, in bytes of rows received per second and "
        "rank, beside torch.distributed's all_to_all_single of as many bytes, in turns. All rows that are asked for "
        "are on other nodes. Under torchrun, every rank is a node of its own. Otherwise two ranks are started on this "
        "machine, with --device cuda on a GPU each, which reach each other over sockets only.",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="whose memory rows come to, by gloo or NCCL"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the tensor (default: 1000000)")
    parser.add_argument("--ids", type=int, default=50_000, help="random ids per rank and batch (default: 50000)")
    parser.add_argument(
        "--features", type=int, nargs="+", default=[128, 32, 512], help="float32 per row (default: 128 32 512)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of both (default: 9)")
    parser.add_argument("--batches", type=int, default=4, help="batches per turn (default: 4)")
    parser.add_argument(
        "--namespaces", action="store_true", help="give each rank a network of its own (Linux, as root; needs 'ip')"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the table (markdown)")


def _add_partition(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "partition",
        _measure("ranks.partition"),
        help="rows of other ranks, with nodes numbered by METIS's parts",
        description="Count the rows of a batch that other ranks hold, with nodes in their own order, in random order, "
        "and numbered by the parts that METIS finds, as `manyhop convert --partition` does. Ranks are simulated.",
    )
    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help="graphs on disk, beside one with communities")
    add("--nodes", type=at_least_one, default=200_000, metavar="N", help="of the graph that is made (default: 200000)")
    add("--ranks", type=at_least_one, nargs="+", default=[2, 4, 8], metavar="N", help="ranks (default: 2 4 8)")
    add("--batches", type=at_least_one, default=8, metavar="N", help="batches per rank, at most (default: 8)")
    add("--batch-size", type=at_least_one, default=1024, metavar="N", help="seeds per batch (default: 1024)")
    add("--fanouts", type=at_least_one, nargs="+", default=[10, 10], metavar="N", help="per hop (default: 10 10)")
    add("--output", type=Path, metavar="DIR", help="also save the table (markdown)")


def _add_cooperative(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "cooperative",
        _measure("ranks.cooperative"),
        help="rows that ranks read and exchange if they sample together",
        description="Count the rows that ranks read and receive, with batches of their own and with one batch of all "
        "(cooperative minibatching), and the rows that batches have in common which depend on each other. Ranks are "
        "simulated.",
    )
    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help="graphs on disk, beside one with communities")
    add("--nodes", type=at_least_one, default=200_000, metavar="N", help="of the graph that is made (default: 200000)")
    add("--ranks", type=at_least_one, default=4, metavar="N", help="ranks (default: 4)")
    add("--batches", type=at_least_one, default=8, metavar="N", help="steps, at most (default: 8)")
    add("--batch-size", type=at_least_one, default=1024, metavar="N", help="seeds per rank (default: 1024)")
    add("--fanouts", type=at_least_one, nargs="+", default=[10, 10], metavar="N", help="per hop (default: 10 10)")
    add("--output", type=Path, metavar="DIR", help="also save the tables (markdown)")


def _add_disk(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "disk",
        _measure("disk.command"),
        help="rows of a file that is larger than memory",
        description="Measure rows read from a mapped file that is larger than the memory of a process, with a cache of "
        "hot rows, beside numpy.memmap; with --gpu, rows that go to a GPU, which keeps hot rows, too; with --ranks, "
        "one cache for all ranks of a node beside a smaller one for each. The limit is a control group, or, without "
        "the right to make one, one for pages of the file; the record names it.",
    )
    parser.add_argument("--gpu", action="store_true", help="measure rows that go to a GPU")
    parser.add_argument(
        "--ranks", type=at_least_one, default=1, metavar="N", help="processes that read at the same time (default: 1)"
    )
    parser.add_argument(
        "--memory", type=parse_bytes, default=1 << 30, metavar="BYTES", help="limit of all of them (default: 1GiB)"
    )
    parser.add_argument("--times", type=at_least_one, default=4, metavar="N", help="file, in limits (default: 4)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="that each reader reads (default: 15)")
    parser.add_argument("--rounds", type=at_least_one, default=2, help="turns (default: 2)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the file is made (default: the system's)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the table (markdown)")


def _add_embeddings(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "embeddings",
        _measure("embeddings.command"),
        help="updates of trainable embeddings",
        description="Measure forward, backward and the update of random rows of 512 bytes by manyhop.Embedding and "
        "optim.Adam beside torch.nn.Embedding(sparse=True) and SparseAdam, on the CPU and, where there is one, a GPU; "
        "there also beside WholeGraph's embeddings and cuGraph-PyG's, where they are installed. For several GPUs: "
        "torchrun --nproc-per-node K -m benchmarks embeddings.",
    )
    parser.add_argument("--rows", type=at_least_one, default=2_000_000, help="rows of the table (default: 2000000)")
    parser.add_argument("--ids", type=at_least_one, default=1_000_000, help="rows of an update (default: 1000000)")
    parser.add_argument("--threads", type=at_least_one, default=2, metavar="N", help="of all on the CPU (default: 2)")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="turns of all (default: 5)")
    parser.add_argument("--only", choices=("cpu", "gpu"), help="measure on the CPU only, or the GPU (both)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the tables (markdown)")


def _add_cluster(targets: Verbs) -> None:
    parser = add_verb(
        targets,
        "cluster",
        _measure("cluster.command"),
        help="many ranks, simulated",
        description="Sample batches of a graph, count the rows that each requests of each rank, and simulate steps of "
        "many ranks that exchange them, beside the cost model. Needs no GPU.",
    )
    parser.add_argument("--ranks", type=at_least_one, nargs="+", default=[1, 8, 64, 512], metavar="W")
    parser.add_argument("--gpus", type=at_least_one, default=8, metavar="K", help="ranks of a node (default: 8)")
    parser.add_argument("--graph", type=Path, metavar="DIR", help="a graph that `manyhop convert` wrote (a random one)")
    parser.add_argument("--nodes", type=at_least_one, default=1_000_000, help="of the random graph (default: 1000000)")
    parser.add_argument("--edges", type=at_least_one, default=15_000_000, help="of the same (default: 15000000)")
    parser.add_argument("--fanout", type=at_least_one, nargs="+", default=[10, 10], metavar="K")
    parser.add_argument("--batch-size", type=at_least_one, default=1024, help="seeds of a rank (default: 1024)")
    parser.add_argument("--batches", type=at_least_one, default=1024, help="to sample (default: 1024)")
    parser.add_argument("--steps", type=at_least_one, default=128, help="to simulate (default: 128)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="also save the tables (cluster.md)")
