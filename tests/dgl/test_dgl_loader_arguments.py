"""Arguments of a loader: what is refused, and the errors of batches."""

import os
import warnings

import numpy as np
import pytest
import torch

import manyhop_dgl
from manyhop.errors import FeatureError, InputError

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader


def graph():
    graph = dgl.rand_graph(20, 60)
    graph.ndata["x"] = torch.randn(20, 2)
    return graph


def loader(*, g=None, indices=None, sampler=None, **kwargs):
    return DataLoader(
        graph() if g is None else g,
        torch.arange(20) if indices is None else indices,
        manyhop_dgl.NeighborSampler([2], prefetch_node_feats=["x"]) if sampler is None else sampler,
        **kwargs,
    )


def test_unknown_arguments():
    for wrong, right in (("num_wokers", "num_workers"), ("shuffel", "shuffle")):
        with pytest.raises(TypeError, match=f"^DataLoader got an unknown argument '{wrong}'. Did you mean '{right}'"):
            loader(**{wrong: 2})


def test_print():
    assert repr(loader(batch_size=8)) == "DataLoader(20 seeds, fanouts [2], batch size 8, 3 batches, cpu: 0 threads)"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sampler": object()}, "a sampler with a method sample"),
        (
            {"sampler": manyhop_dgl.NeighborSampler},
            "the class NeighborSampler. Make one",
        ),
        ({"sampler": manyhop_dgl.NeighborSampler([{"to": 2}])}, "Unknown edge type 'to' in fanouts"),
        ({"g": torch.zeros(2, 3)}, "a DGLGraph or a manyhop_dgl.Graph, got Tensor"),
        ({"indices": "train"}, "indices to be a tensor.* got a str"),
        ({"indices": torch.rand(3)}, r"1-dimensional tensor of integers, got torch.float32 of shape \[3\]"),
        ({"indices": torch.zeros(3, 2, dtype=torch.int64)}, r"got torch.int64 of shape \[3, 2\]"),
        ({"num_workers": 2.0}, "num_workers to be an integer of at least 0"),
        ({"num_workers": -1}, "num_workers to be an integer of at least 0"),
        ({"indices": 5}, r"1-dimensional tensor of integers, got torch.int64 of shape \[\]"),
        ({"indices": torch.ones(20, dtype=torch.bool)}, "got torch.bool, a dtype of masks"),
        ({"indices": torch.ones(20, dtype=torch.uint8)}, "got torch.uint8, a dtype of masks"),
        ({"indices": {"_N": torch.ones(20, dtype=torch.uint8)}}, "got torch.uint8, a dtype of masks"),
        ({"indices": object()}, "indices to be a tensor"),
        ({"indices": {"_N": object()}}, r"indices\['_N'\]"),
        ({"indices": torch.arange(3, device="meta")}, "as a dense tensor in memory, got a tensor"),
        ({"indices": {"_N": torch.arange(3, device="meta")}}, "as a dense tensor in memory, got a tensor"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"indices": [torch.arange(3), torch.arange(4)], "batch_size": 2}, "whose items are batches"),
        ({"indices": [torch.arange(3), torch.arange(4)], "drop_last": True}, "drop_last"),
        ({"indices": [torch.arange(3), torch.arange(4)], "use_ddp": True}, "use_ddp"),
        ({"indices": [torch.arange(3), torch.arange(4)], "shuffle": True}, "no method shuffle"),
        ({"device": "mars"}, "device to be"),
        ({"device": "cuda:99"}, "an available device"),
        ({"use_uva": True, "device": "cpu"}, "use_uva=True"),
        ({"pin_prefetcher": True}, "pin_prefetcher=True"),
        ({"gpu_cache": {"node": {"x": 10}}}, "gpu_cache"),
        ({"seed": 1, "ddp_seed": 2, "use_ddp": True}, "Pass one"),
        ({"seed": "one"}, "seed to be an integer"),
        ({"rank_timeout": 3.0}, "only with use_ddp"),
        ({"rank_timeout": -1.0, "use_ddp": True}, "more than 0"),
        ({"batch_sampler": [[1]]}, "batch_sampler"),
        ({"collate_fn": list}, "collate_fn"),
        ({"pin_memory": True}, "pin_memory"),
        ({"use_ddp": "no"}, "use_ddp to be True or False"),
        ({"drop_last": "no"}, "drop_last to be True or False"),
        ({"shuffle": "no"}, "shuffle to be True or False"),
        ({"use_uva": "no"}, "use_uva to be True or False"),
        ({"use_prefetch_thread": "no"}, "use_prefetch_thread to be True or False"),
        ({"use_alternate_streams": "no"}, "use_alternate_streams to be True or False"),
        ({"persistent_workers": "no"}, "persistent_workers to be True or False"),
        ({"ddp_seed": "x"}, "ddp_seed to be an integer, got 'x'"),
        ({"use_ddp": True, "rank_timeout": "5"}, "rank_timeout in seconds, more than 0, got '5'"),
        ({"use_ddp": True, "rank_timeout": 1e300}, "rank_timeout in seconds, at most 100000000, got 1e"),
        ({"num_workers": "2"}, "num_workers to be an integer of at least 0, got '2'"),
        ({"num_workers": 1, "prefetch_factor": 2.5}, "prefetch_factor to be an integer of at least 1, got 2.5"),
        ({"num_workers": 1, "timeout": "5"}, "timeout in seconds, at least 0, got '5'"),
        ({"num_workers": 1, "worker_init_fn": 3}, "worker_init_fn to be a function, got 3"),
        ({"generator": 3}, "generator to be a torch.Generator, got 3"),
        ({"timeout": 5}, "timeout=0 with num_workers=0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
    ],
)
def test_what_makes_no_sense_is_refused(kwargs, message):
    with pytest.raises(InputError, match=message):
        loader(**kwargs)


def test_graphs_that_other_loaders_are_for():
    with pytest.raises(InputError, match="DistNodeDataLoader"):
        loader(g=object.__new__(dgl.distributed.DistGraph), sampler=Failing())
    g = graph()
    g.__class__ = type("OnGPU", (dgl.DGLGraph,), {"device": torch.device("cuda")})
    with pytest.raises(InputError, match="Expected a graph on the CPU, got one on cuda"):
        loader(g=g, sampler=Failing(), device="cpu", num_workers=1)


def test_seeds_of_types_that_the_graph_lacks():
    edges = {("a", "to", "b"): ([0, 1], [1, 2]), ("b", "back", "a"): ([1], [0])}
    sampler = manyhop_dgl.NeighborSampler([2])
    with pytest.raises(InputError, match="'film' in indices"):
        DataLoader(dgl.heterograph(edges), {"a": torch.arange(2), "film": torch.arange(2)}, sampler)
    with pytest.raises(InputError, match="as a dict"):
        DataLoader(dgl.heterograph(edges), torch.arange(2), sampler)
    of_edges = manyhop_dgl.as_edge_prediction_sampler(sampler)
    with pytest.raises(InputError, match="Unknown edge type 'a' in indices"):
        DataLoader(dgl.heterograph(edges), {"a": torch.arange(2)}, of_edges)
    with pytest.raises(InputError, match="as a dict, edge type -> ids"):
        DataLoader(dgl.heterograph(edges), torch.arange(2), of_edges)


def test_data_that_the_graph_lacks():
    g = graph()
    batches = iter(loader(g=g, num_workers=1, batch_size=4))
    next(batches)
    g.ndata.pop("x")
    with pytest.raises(FeatureError, match=r"(?s)data 'x', which.*batch 1 of epoch 0"):
        next(batches)


class Failing(dgl.dataloading.Sampler):
    def sample(self, g, indices):
        if 9 in indices:
            raise ZeroDivisionError("nine")
        return g.subgraph(indices)


class NoIds(dgl.dataloading.Sampler):
    def sample(self, g, indices):
        sub = dgl.rand_graph(5, 5)
        sub.ndata["x"] = dgl.LazyFeature("x")
        return sub


def test_a_lazy_feature_without_ids():
    with pytest.raises(FeatureError, match="no data '_ID'"):
        next(iter(loader(sampler=NoIds())))


class OtherTypes(dgl.dataloading.Sampler):
    def sample(self, g, indices):
        sub = dgl.heterograph({("a", "to", "b"): ([0], [0])})
        sub.edges["to"].data["x"] = dgl.LazyFeature("x", torch.arange(1))
        return sub


def test_a_lazy_feature_of_a_type_that_the_graph_lacks():
    with pytest.raises(InputError, match="Unknown edge type"):
        next(iter(loader(sampler=OtherTypes())))


def test_cores_that_are_not_there():
    with pytest.raises(InputError, match="got 0"), loader().enable_cpu_affinity():
        pass
    with pytest.raises(InputError, match="out of the cores"), loader(num_workers=1).enable_cpu_affinity([100000]):
        pass
    for name, cores in (("loader_cores", "x"), ("compute_cores", 3), ("loader_cores", ["0"])):
        with pytest.raises(InputError, match=f"{name} as a list of cores, got"):
            loader(num_workers=1).enable_cpu_affinity(**{name: cores}).__enter__()
    core = min(os.sched_getaffinity(0))
    cores = loader(num_workers=1).enable_cpu_affinity([core, core])
    with pytest.raises(InputError, match="loader_cores"), cores:
        pass


def test_no_seeds():
    assert list(loader(indices=[], batch_size=3, shuffle=True)) == []


def test_seeds_in_an_array_that_may_not_be_written_to():
    seeds = np.arange(5)
    seeds.setflags(write=False)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ((_, output_nodes, _),) = loader(indices=seeds, batch_size=5)
    finally:
        torch.set_warn_always(always)
    assert output_nodes.tolist() == [0, 1, 2, 3, 4]


def test_a_batch_size_of_numpy():
    given = loader(batch_size=np.int64(8))
    assert (len(given), [len(batch[1]) for batch in given], type(given.batch_size)) == (3, [8, 8, 4], int)


def test_a_list_of_seeds_of_int32():
    g = graph().int()
    batches = list(loader(g=g, indices=torch.arange(20, dtype=torch.int32), batch_size=20))
    assert batches[0][1].dtype == torch.int32
    assert [batch[1].tolist() for batch in loader(indices=[3, 4, 5], batch_size=2)] == [[3, 4], [5]]
