"""Arguments for worker processes, arguments of the wrong kind, and what others do with a loader."""

import copy
import inspect
import logging
import math
import os
import subprocess
import sys
import threading
import warnings

import forks
import numpy as np
import pytest
import torch
import torch_geometric.loader
from helpers_pyg import all_same, check_batch
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData

import manyhop
import manyhop_pyg
from manyhop.errors import InputError
from manyhop.loading.pipeline import WorkerThreads
from manyhop_pyg import HGTLoader, HGTSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler


def loader_of(data, **kwargs):
    return NeighborLoader(data, [3, 2], **{"batch_size": 8, "shuffle": True, "seed": 5, **kwargs})


def test_a_map_style_dataset_of_nodes_ends_with_its_length(data):
    class Endless(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return 2 * i

    loader = NeighborLoader(data, [3], input_nodes=Endless(), batch_size=2)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == [[0, 2], [4]]


def test_error_in_worker_init_fn(data):
    def init(worker):
        raise OSError("no such core")

    with pytest.raises(OSError, match="no such core"):
        list(loader_of(data, num_workers=2, worker_init_fn=init))


def test_timeout(data, monkeypatch):
    monkeypatch.setattr(WorkerThreads, "close_seconds", 0.01)  # the thread hangs
    hold = threading.Event()
    loader = loader_of(data, num_workers=1, timeout=0.2, transform=lambda batch: hold.wait())
    try:
        with pytest.raises(TimeoutError, match=r"Expected batch 0 within 0\.2 s"):
            list(loader)
    finally:
        hold.set()


def test_arguments_that_change_nothing(data):
    expected = list(loader_of(data))
    for extra in (
        dict(multiprocessing_context="spawn"),
        dict(multiprocessing_context=torch.multiprocessing.get_context("fork")),
        dict(prefetch_factor=1),
        dict(in_order=False),
        dict(persistent_workers=True),
        dict(filter_per_worker=True),
        dict(filter_per_worker=False),
    ):
        assert all_same(expected, list(loader_of(data, num_workers=2, **extra)))


def test_more_threads_than_cores_do_not_warn(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader_of(data, num_workers=4 * os.cpu_count()))) == 8


@pytest.mark.parametrize("copied", [False, True])
def test_pin_memory_without_an_accelerator(data, on_gpu, copied):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    if copied:  # as for a process that uses no GPU
        pytest.importorskip("triton")
        on_gpu()
    loader = loader_of(data, pin_memory=True)
    if copied:
        loader = copy.copy(loader)
        on_gpu(False)
    with pytest.warns(UserWarning, match="no accelerator"):
        batches = list(loader)
    assert all_same(batches, list(loader_of(data)))


def test_unknown_arguments(data):
    for wrong, right in (("num_wokers", "num_workers"), ("shuffel", "shuffle"), ("num_neighbours", "num_neighbors")):
        with pytest.raises(
            TypeError, match=f"^NeighborLoader got an unknown argument '{wrong}'. Did you mean '{right}'"
        ):
            loader_of(data, **{wrong: 2})
    for name in ("nothing", "local_seeds_per_call"):  # the latter of cuGraph-PyG
        with pytest.raises(TypeError, match=rf"unknown argument '{name}'\. Leave it out\."):
            loader_of(data, **{name: 2})
    with pytest.raises(ValueError, match="seed"):
        NeighborLoader(data, [2], seed="a")


def test_cores_that_are_not_there(data):
    loader = loader_of(data, num_workers=2)
    with loader.enable_cpu_affinity(loader_cores=[0, 10**6]), pytest.raises(OSError, match="Invalid argument"):
        list(loader)
    with pytest.raises(ValueError, match="at least one worker"), loader_of(data).enable_cpu_affinity():
        pass


def test_multithreading_and_memory_log(data, caplog):
    loader = loader_of(data, num_workers=2)
    with loader.enable_multithreading(1):
        assert all_same(list(loader), list(loader_of(data)))
    with pytest.raises(ValueError, match="worker_threads"), loader.enable_multithreading(10**6):
        pass
    with pytest.raises(ValueError, match="num_workers"), loader_of(data).enable_multithreading():
        pass
    with caplog.at_level(logging.DEBUG), loader.enable_memory_log():
        list(loader)
    assert "Worker 1" in caplog.text


@pytest.mark.parametrize(
    "name",
    ["NodeLoader", "NeighborLoader", "LinkLoader", "LinkNeighborLoader", "HGTLoader", "NeighborSampler", "HGTSampler"],
)
def test_signatures(name):
    """PyG's arguments, in PyG's order, with PyG's defaults; ours are keyword-only."""
    pyg = torch_geometric.sampler if "Sampler" in name else torch_geometric.loader
    theirs = inspect.signature(getattr(pyg, name).__init__).parameters
    ours = inspect.signature(getattr(manyhop_pyg, name).__init__).parameters
    positional = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [p for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    new = {"sample_direction"} - set(theirs)  # since PyG 2.7
    assert [(p.name, p.default) for p in positional if p.name not in new] == [(p.name, p.default) for p in expected]


def test_ours_in_pygs_loaders(data):
    sampler = NeighborSampler(data, [3, 2])

    def epoch(workers, **kwargs):
        torch.manual_seed(1)
        loader = torch_geometric.loader.NodeLoader(
            data, node_sampler=sampler, batch_size=16, num_workers=workers, **kwargs
        )
        return list(loader)

    for workers in (0, 2):
        batches = epoch(workers)
        for batch in batches:
            check_batch(batch, data)
        assert all_same(batches, epoch(workers))
    torch_geometric.loader.NeighborLoader(data, [3], neighbor_sampler=sampler)
    link = torch_geometric.loader.LinkNeighborLoader(
        data, [3], neighbor_sampler=sampler, neg_sampling="binary", batch_size=50
    )
    for batch in link:
        check_batch(batch, data)
        assert batch.edge_label.numel() == 2 * batch.input_id.numel()


@pytest.mark.slow
def test_spawned_workers(data):
    loader = torch_geometric.loader.NodeLoader(
        data,
        node_sampler=NeighborSampler(data, [3, 2], share_memory=True),
        batch_size=30,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    for batch in loader:
        check_batch(batch, data)


def test_ours_in_a_forked_worker(data):
    """A dataset that samples with one of our loaders inside of torch's worker processes."""
    loader = loader_of(data)

    class Batches(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return loader([i, i + 1])

    data.x = torch.randn(60, 3000)
    for i, batch in enumerate(DataLoader(Batches(), batch_size=None, num_workers=2)):
        assert batch.n_id[:2].tolist() == [i, i + 1]
        check_batch(batch, data)


def iterate(loader, queue):
    queue.put([b.e_id.tolist() for b in loader])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_other_processes(data, persistent, method):
    """A loader whose threads have run works in a child process, forked or spawned."""
    if method == "spawn" and persistent:
        pytest.skip("one start of an interpreter is enough")
    loader = loader_of(data, num_workers=2, persistent_workers=persistent)
    list(loader)
    context = torch.multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=iterate, args=(loader, queue))
    child.start()
    found = queue.get()
    child.join()
    assert child.exitcode == 0
    assert found == [b.e_id.tolist() for b in loader]  # both go on with the second epoch


@pytest.mark.parametrize("name", ["NodeLoader", "NeighborLoader", "LinkLoader", "LinkNeighborLoader", "HGTLoader"])
def test_help_explains_every_argument(name):
    loader = getattr(manyhop_pyg, name)
    parameters = inspect.signature(loader).parameters
    assert {"seed", "distributed", "device", "placement", "pad", "filter_per_worker", "kwargs"} <= set(parameters)
    arguments = inspect.getdoc(loader).partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
    entries = [line.partition(":")[0] for line in arguments.splitlines() if line[4:5].strip()]
    assert [entry.strip(" *") for entry in ", ".join(entries).split(", ")] == list(parameters)


SCRIPT = """
import multiprocessing
import sys

import torch
from torch_geometric.data import Data

from manyhop_pyg import LinkNeighborLoader, NeighborLoader


def batches(loader):
    return [(batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.tolist()) for batch in loader]


def child(loaders, queue):
    queue.put([batches(loader) for loader in loaders])


def made(num_workers):
    options = {"batch_size": 8, "seed": 1, "num_workers": num_workers}
    yield NeighborLoader(data, [3, 2], **options)
    yield LinkNeighborLoader(data, [3], edge_index[:, :20], neg_sampling="binary", **options)


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 30, (2, 200), generator=generator)
    data = Data(x=torch.rand(30, 4, generator=generator), edge_index=edge_index)
    loaders = [loader for num_workers in sys.argv[2:] for loader in made(int(num_workers))]
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(loaders, queue))
    process.start()
    theirs = queue.get()
    process.join()
    print(process.exitcode, theirs == [batches(loader) for loader in loaders])
"""


def check(folder, python, method, *num_workers):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [python, str(script), method, *num_workers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_used_by_another_process(tmp_path, method):
    check(tmp_path, forks.python(), method, "0", "2")


@pytest.mark.slow
def test_a_forked_process_compiles(tmp_path, monkeypatch):
    """With an empty cache, the parent compiles the sampler, and the child what gathers rows."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    check(tmp_path, sys.executable, "fork", "0")


def graph(**kwargs):
    edge_index = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    return Data(x=torch.arange(6.0), edge_index=edge_index, time=torch.arange(5), **kwargs)


def refused(message, call, *args, **kwargs):
    with pytest.raises(InputError, match=message):
        call(*args, **kwargs)


@pytest.mark.parametrize("value", ["no", 2, 1.0, None])
@pytest.mark.parametrize("name", ["replace", "disjoint", "is_sorted", "directed", "distributed"])
def test_flags(name, value):
    refused(f"Expected {name} to be True or False, got", NeighborLoader, graph(), [2], **{name: value})


@pytest.mark.parametrize(
    "name", ["filter_per_worker", "shuffle", "drop_last", "pin_memory", "persistent_workers", "in_order"]
)
def test_flags_that_may_be_left_open(name):
    refused(f"Expected {name} to be True or False, got 'x'", NeighborLoader, graph(), [2], **{name: "x"})


@pytest.mark.parametrize("yes", [True, 1, np.True_])
def test_what_is_a_flag(yes):
    assert NeighborSampler(graph(), [2], replace=yes).replace is True


@pytest.mark.parametrize("batch_size", [np.int64(4), torch.tensor(4)])
def test_any_integer_is_a_batch_size(batch_size):
    loader = NeighborLoader(graph(), [2], batch_size=batch_size)
    assert type(loader.batch_size) is int
    assert [batch.batch_size for batch in loader] == [4, 2]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (dict(sampler=[1.7, -1]), "positions of a sampler as a 1-dimensional tensor of integers"),
        (dict(sampler=[1, -1]), r"positions of inputs in \[0, 6\), got -1"),
        (dict(sampler=[True, False]), "positions of a sampler as ids, got torch.bool"),
        (dict(sampler="ab"), "positions of a sampler as a tensor or an array of numbers, got a list"),
        (dict(batch_sampler=[[1.7]]), "positions of a sampler as a 1-dimensional tensor of integers"),
        (dict(batch_sampler=[torch.tensor([-1])]), "got -1"),
        (dict(batch_sampler=[torch.tensor([True])]), "positions of a sampler as ids, got torch.bool"),
    ],
    ids=str,
)
def test_positions_of_samplers(order, message):
    batch_size = {} if "batch_sampler" in order else {"batch_size": 2}
    refused(message, list, NeighborLoader(graph(), [2], **order, **batch_size))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_input_id_is_what_a_tensor_can_be_made_of(kind):
    batch = next(iter(NeighborLoader(graph(), [2], input_id=kind([7, 8, 9, 1, 2, 3]), batch_size=2)))
    assert batch.input_id.tolist() == [7, 8]
    links = LinkNeighborLoader(graph(), [2], input_id=kind([7, 8, 9, 1, 2]), batch_size=2)
    assert next(iter(links)).input_id.tolist() == [7, 8]


@pytest.mark.parametrize("num_samples", [4, "ab", [1.5], [True], None, {"a": 4}, {"a": [True]}], ids=str)
def test_numbers_of_samples(num_samples):
    data = HeteroData()
    data["a"].x, data["a", "to", "a"].edge_index = torch.arange(4.0), torch.tensor([[0, 1], [1, 2]])
    refused("list of integers as num_samples", HGTLoader, data, num_samples, "a")
    refused("is_sorted to be True or False", HGTSampler, data, [2], is_sorted="no")


def test_negatives_that_cannot_be_drawn_name_the_argument_that_loaders_have():
    data = Data(x=torch.arange(2.0), edge_index=torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]]))
    loader = LinkNeighborLoader(data, [2], neg_sampling="binary", exclude_true_negatives=True)
    refused(r"loaders: exclude_true_negatives=False", list, loader)


def test_attributes_that_are_set_later():
    sampler = NeighborSampler(graph(), [2])
    for name in ("replace", "disjoint", "keep_orig_edges"):
        refused(f"Expected {name} to be True or False", setattr, sampler, name, "no")
    assert sampler.replace is sampler.disjoint is False


def test_functions(tmp_path):
    refused("crc32 to be True or False", manyhop_pyg.save, graph(), tmp_path / "g", crc32="no")
    assert not (tmp_path / "g").exists()
    refused("folder as a path, got 3", manyhop_pyg.save, graph(), 3)
    refused("folder as a path, got 3", manyhop_pyg.open, 3)
    refused("placement to be one of", manyhop_pyg.open, tmp_path, placement=[])
    refused("timeout in seconds", manyhop_pyg.share, graph, timeout="5")
    refused("timeout in seconds", manyhop.init, timeout="5")
    for unending in (math.inf, 1e300):
        refused("timeout in seconds, at most 100000000, got", manyhop.init, timeout=unending)
        refused("timeout in seconds, at most 100000000, got", manyhop_pyg.share, graph, timeout=unending)


@pytest.mark.parametrize("cores", ["x", 3, ["0"], [None], [-1], [True], [[0, "1"]]], ids=str)
def test_cores_of_workers(cores):
    loader = NeighborLoader(graph(), [2], num_workers=1)
    refused("loader_cores as a list of cores, or of lists of cores, got", loader.enable_cpu_affinity(cores).__enter__)
