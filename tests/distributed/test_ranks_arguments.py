"""Ranks that share batches compare what shapes them; Lightning's loaders."""

import itertools
import pickle
import time

import pytest
import torch
from rank_loaders import binary, digest, graph, homogeneous, one_process, typed_graph
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import InputError, RankError
from manyhop_pyg import (
    FeatureStore,
    GraphStore,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
)
from manyhop_pyg.loaders.loader import ThreadedLoader


def loader(cls=NeighborLoader, data=None, fanouts=(3, 2), **kwargs):
    return cls(data or graph(), list(fanouts), **{"batch_size": 8, "seed": 1, **kwargs})


def links(negatives="binary", **kwargs):
    data = graph()
    kwargs = {"edge_label_index": data.edge_index, "edge_label": torch.ones(300), "batch_size": 8, "seed": 1} | kwargs
    return LinkNeighborLoader(data, [2], neg_sampling=negatives, **kwargs)


def from_sampler(fanouts, **kwargs):
    return NodeLoader(graph(), NeighborSampler(graph(), fanouts, **kwargs), seed=1)


def smaller():
    return graph().edge_subgraph(torch.arange(300) > 0)


def weighted(factor):
    return NegativeSampling("binary", 1.0, dst_weight=torch.arange(61.0) * factor)


def typed(per_type, cls=NeighborLoader, **kwargs):
    return cls(typed_graph(), per_type, "paper", seed=1, **kwargs)


def changed(name, at):
    """The graph with one entry of one attribute changed."""
    data = graph()
    value = getattr(data, name)
    value.view(-1)[at] = (value.view(-1)[at] + 1) % 50
    return data


def as_stores(name=None):
    data, store, edges = changed(name, 3) if name else graph(), FeatureStore(), GraphStore()
    store.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    store.put_tensor(data.y.numpy(), group_name=None, attr_name="y", index=None)
    edges.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(61, 61))
    return store, edges


def in_another_order():
    """The same edges under other ids: in the order of their destinations."""
    data = graph()
    data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    return data


ids, labels = torch.arange(20), torch.ones(300)
# What rank 0 makes, what rank 1 makes, and what the error calls the difference.
DIFFERENCES = {
    "class": (lambda: loader(), lambda: links()),
    "seed (given once)": (lambda: loader(), lambda: loader(seed=None)),
    "shuffle": (lambda: loader(), lambda: loader(shuffle=True)),
    "drop_last": (lambda: loader(), lambda: loader(drop_last=True)),
    "uneven": (lambda: loader(), lambda: loader(uneven="drop")),
    "num_neighbors (typed)": (lambda: typed([1]), lambda: typed({t: [2] for t in typed_graph().edge_types})),
    "num_samples": (lambda: typed([4], HGTLoader), lambda: typed([5], HGTLoader)),
    "max_neighbors": (lambda: typed([4], HGTLoader), lambda: typed([4], HGTLoader, max_neighbors=None)),
    "replace": (lambda: loader(), lambda: loader(replace=True)),
    "subgraph_type": (lambda: loader(), lambda: loader(subgraph_type="induced")),
    "disjoint": (lambda: loader(), lambda: loader(disjoint=True)),
    "temporal_strategy": (
        lambda: loader(time_attr="time"),
        lambda: loader(time_attr="time", temporal_strategy="last"),
    ),
    "weight_attr": (lambda: loader(), lambda: loader(weight_attr="weight")),
    "time_window": (lambda: loader(time_attr="time"), lambda: loader(time_attr="time", time_window=3)),
    "specification of the sampler": (lambda: from_sampler([3]), lambda: from_sampler([3], replace=True)),
    "edges": (lambda: loader(), lambda: loader(data=changed("edge_index", 599))),
    "edge ids": (lambda: loader(), lambda: loader(data=in_another_order())),
    "weights": (lambda: loader(weight_attr="weight"), lambda: loader(data=changed("weight", 7), weight_attr="weight")),
    "times": (lambda: loader(time_attr="time"), lambda: loader(data=changed("time", 0), time_attr="time")),
    "data 'x'": (lambda: loader(), lambda: loader(data=changed("x", 100))),
    "data 'y'": (lambda: loader(), lambda: loader(data=changed("y", 60))),
    "data 'edge_attr'": (lambda: loader(), lambda: loader(data=changed("edge_attr", 299))),
    "data 'x' (store)": (lambda: loader(data=as_stores()), lambda: loader(data=as_stores("x"))),
    "data 'y' (store)": (lambda: loader(data=as_stores()), lambda: loader(data=as_stores("y"))),
    "number of edges": (lambda: loader(), lambda: loader(data=smaller())),
    "input_id": (lambda: loader(input_nodes=ids, input_id=ids), lambda: loader(input_nodes=ids, input_id=ids + 1)),
    "time of the seeds": (
        lambda: loader(time_attr="time", input_nodes=ids, input_time=ids),
        lambda: loader(time_attr="time", input_nodes=ids, input_time=ids + 1),
    ),
    "neg_sampling": (lambda: links(), lambda: links("triplet", edge_label=None)),
    "neg_sampling (weights)": (lambda: links(weighted(1)), lambda: links(weighted(2))),
    "exclude_true_negatives": (lambda: links(), lambda: links(exclude_true_negatives=True)),
    "edge_label": (lambda: links(), lambda: links(edge_label=labels * 2)),
    "edge_label_index[1]": (lambda: links(), lambda: links(edge_label_index=graph().edge_index[[0, 0]])),
}


def differ():
    import manyhop

    rank = manyhop.init().rank
    # Every loader is made with distributed=True, also those that functions above make.
    ThreadedLoader.__init__.__kwdefaults__["distributed"] = True
    out = {}
    for name, makers in DIFFERENCES.items():
        try:
            makers[rank]()
        except RankError as error:
            out[name] = str(error)
    return out


def test_the_first_difference_is_named_on_every_rank(launcher):
    for messages in launcher.run(differ):
        for name in DIFFERENCES:
            title = name.split(" (")[0]
            assert f"expected the same {title} on all ranks, got" in messages.get(name, "nothing"), name
            assert "rank 0" in messages[name]
            assert "rank 1" in messages[name]


def do_not_differ():
    """What does not shape batches may differ."""
    import manyhop

    rank = manyhop.init().rank
    kwargs = [{"num_workers": 2, "transform": str}, {"filter_per_worker": False, "rank_timeout": 30.0}][rank]
    loader(distributed=True, **kwargs)
    return rank


def test_other_arguments_may_differ(launcher):
    assert launcher.run(do_not_differ) == [0, 1]


def load_other_states():
    import manyhop

    rank = manyhop.init().rank
    one = loader(distributed=True)
    try:
        one.load_state_dict(one.state_dict() | {"batch": rank})
    except RankError as error:
        return str(error)


def test_states_are_compared(launcher):
    for message in launcher.run(load_other_states):
        assert "load_state_dict(): expected the same batch on all ranks, got 0 on rank 0; 1 on rank 1" in message


def fail_late(batch):
    time.sleep(0.2)
    if 17 in batch.input_id:
        raise KeyError("seventeen")
    return batch


def meet_a_failure(num_workers):
    one = loader(distributed=True, batch_size=1, transform=fail_late, num_workers=num_workers, rank_timeout=200.0)
    start = None
    try:
        for _ in itertools.chain.from_iterable(itertools.repeat(one)):  # rank 0 may be through before rank 1 fails
            start = start or time.monotonic()
    except RankError as error:
        return error.ranks, str(error), time.monotonic() - start
    except KeyError as error:
        return error.failed_batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rank_whose_batch_fails_is_known_to_the_others(launcher, num_workers):
    (ranks, message, seconds), batch = launcher.run(meet_a_failure, num_workers)
    assert batch == (0, 17)
    assert ranks == (1,)
    assert "batch 17 of epoch 0: KeyError: 'seventeen'" in message
    assert seconds < 60, "before any timeout"


def copy_loaders():
    one = homogeneous(distributed=True, seed=5)
    next(iter(one))
    other = pickle.loads(pickle.dumps(homogeneous(distributed=True, seed=5)))
    return [digest(batch) for batch in other]


def test_copies_share_batches_too(launcher):
    first, second = launcher.run(copy_loaders)
    assert [b for pair in zip(first, second, strict=True) for b in pair] == one_process("homogeneous")[0]


def test_lightning_leaves_the_batches_alone():
    pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.utilities.data import _update_dataloader
    from torch.utils.data.distributed import DistributedSampler

    for one in (homogeneous(distributed=True, seed=5), binary(distributed=True, seed=5)):
        sampler = DistributedSampler(one.dataset, num_replicas=2, rank=1)
        with pytest.raises(InputError, match=r"Trainer\.predict\(\)"):
            _update_dataloader(one, sampler)
