"""The loader: what is in its minibatches, in which thread things happen, and how it ends."""

import subprocess
import sys
import threading

import pytest
import torch
from gb_graphs import batches, random_graph
from torch.utils.data import IterDataPipe

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

GRAPH = random_graph(weight=torch.rand(400))
FEATURES = gb.BasicFeatureStore(
    {
        ("node", None, "feat"): gb.TorchBasedFeature(torch.arange(180.0).view(60, 3)),
        ("node", None, "more"): gb.TorchBasedFeature(torch.arange(60).view(60, 1)),
        ("edge", None, "weight"): gb.TorchBasedFeature(torch.arange(400.0).view(400, 1)),
    }
)


def nodes(**kwargs):
    kwargs = {"batch_size": 4, "shuffle": True, "seed": 3} | kwargs
    return batches(("seeds", "labels"), (torch.arange(60), torch.arange(60)), **kwargs)


def sampled(**kwargs):
    pipe = nodes(**kwargs).sample_neighbor(GRAPH, [3, 2])
    return pipe.fetch_feature(FEATURES, node_feature_keys=["feat", "more"], edge_feature_keys=["weight"])


class Where:
    """A function of the user that notes in which thread it is called."""

    def __init__(self):
        self.threads = set()

    def __call__(self, minibatch):
        self.threads.add(threading.current_thread())
        return minibatch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_functions_of_the_user_run_where_graphbolt_runs_them(num_workers):
    before, between, after = Where(), Where(), Where()
    pipe = nodes().transform(before).sample_neighbor(GRAPH, [2]).transform(between).copy_to("cpu").transform(after)
    list(gb.DataLoader(pipe, num_workers=num_workers))
    here = threading.current_thread()
    assert here not in before.threads | between.threads
    assert (after.threads == {here}) == (num_workers == 0)
    alone = Where()
    list(gb.DataLoader(nodes().transform(alone)))
    assert alone.threads == {here}


@pytest.mark.filterwarnings("ignore:Local function is not supported by pickle:UserWarning")  # torch's
def test_pipes_of_torch():
    pipe = nodes(shuffle=False).map(lambda minibatch: minibatch.seeds + 1)
    assert torch.equal(torch.cat(list(gb.DataLoader(pipe, num_workers=2))), torch.arange(1, 61))


class Source(IterDataPipe):
    """Minibatches that are made by hand."""

    def __iter__(self):
        for i in range(4):
            yield gb.MiniBatch(seeds=torch.arange(i * 10, i * 10 + 10))


def test_outside_of_a_loader_torch_draws():
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([minibatch.input_nodes.tolist() for minibatch in Source().sample_neighbor(GRAPH, [2])])
    assert runs[0] == runs[1]
    assert [minibatch.input_nodes.tolist() for minibatch in Source().sample_neighbor(GRAPH, [2])] != runs[0]


def test_a_transform_has_to_return_a_minibatch():
    with pytest.raises(InputError, match="to return a MiniBatch, got a NoneType"):
        list(gb.DataLoader(nodes().transform(lambda minibatch: None)))

    def renewed(minibatch):
        return gb.MiniBatch(seeds=minibatch.seeds)

    assert [minibatch.key.batch for minibatch in nodes().transform(renewed)] == list(range(15))


def test_copy_to():
    pipe = batches(("seed_nodes", "labels"), (torch.arange(8),) * 2).copy_to("meta", extra_attrs=["input_nodes"])
    (minibatch,) = pipe.transform()
    assert minibatch.labels.device.type == minibatch.seeds.device.type == "meta"
    plain = Source().map(lambda_free).copy_to(torch.device("meta"))
    assert next(iter(plain))["seeds"][0].device.type == "meta"


def lambda_free(minibatch):
    return {"seeds": (minibatch.seeds,)}


NAMES_TAKEN = """
import sys
import torch
from torch.utils.data import IterDataPipe, functional_datapipe

@functional_datapipe("copy_to")
class Other(IterDataPipe):
    def __init__(self, datapipe, device):
        self.datapipe = datapipe

import manyhop_dgl.graphbolt as gb

pipe = gb.ItemSampler(gb.ItemSet(torch.arange(4), names="seeds"), batch_size=2)
assert type(pipe.copy_to("cpu")) is gb.CopyTo
assert type(pipe.filter(bool).copy_to("cpu")) is Other
assert not {"dgl", "torch_geometric", "triton", "numba"} & sys.modules.keys()
"""


def test_functional_names_that_are_taken_and_what_is_imported():
    done = subprocess.run([sys.executable, "-W", "error", "-c", NAMES_TAKEN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
