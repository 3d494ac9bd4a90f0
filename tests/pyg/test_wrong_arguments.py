"""Arguments of the wrong kind are errors that name them: never a guess, never an error from deep inside."""

import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import manyhop
import manyhop_pyg
from manyhop.errors import InputError
from manyhop_pyg import HGTLoader, HGTSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler


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
