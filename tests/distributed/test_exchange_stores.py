"""What ranks put into stores together, whole or in parts, any rank gets again."""

import numpy as np
import pytest
import torch

import manyhop
from manyhop.errors import FeatureError, GraphError, InputError, ManyhopError
from manyhop_pyg import FeatureStore, GraphStore

FOUR = [0, 0, 1, 1]


def tensors():
    draw = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(103, 7, generator=draw),
        "y": torch.randint(0, 9, (103,), generator=draw, dtype=torch.int32),
        "half": torch.randn(103, 2, 3, generator=draw).half(),
    }


def put_and_get(placement, how, chunk_bytes):
    from manyhop.features.exchange import spread
    from manyhop.memory.mapped_files import identity

    spread._CHUNK_BYTES = chunk_bytes
    world = manyhop.init()
    store, whole = FeatureStore(placement=placement, rank_timeout=100.0), tensors()
    for name, tensor in whole.items():
        if how == "whole":
            store.put_tensor(tensor.numpy() if name == "y" else tensor, group_name="n", attr_name=name, index=None)
        else:
            cuts = {"parts": [0, 10, 10, 60, 103], "first": [0, 103, 103, 103, 103]}[how]
            begin, end = cuts[world.rank], cuts[world.rank + 1]
            part = tensor[begin:end] if end > begin else torch.empty(0)  # of another shape and dtype
            store.put_tensor(part, group_name="n", attr_name=name, index=slice(begin, end))
    ids = torch.tensor([5, 102, 5, 50, world.rank])
    attrs = [attr for attr in store.get_all_tensor_attrs()]
    for attr in attrs:
        attr.index = ids
    for name, got in zip(whole, store.multi_get_tensor(attrs), strict=True):
        assert torch.equal(got, whole[name][ids])
        assert store.get_tensor_size(group_name="n", attr_name=name, index=None) == tuple(whole[name].shape)
        assert store.get_tensor_size(group_name="n", attr_name=name, index=ids) == tuple(whole[name][ids].shape)

    def get(index):
        return store.get_tensor(group_name="n", attr_name="x", index=index)

    x = whole["x"]
    assert torch.equal(get(None), x)
    assert torch.equal(get(slice(40, 70, 3)), x[40:70:3])
    assert torch.equal(get(world.rank * 30), x[world.rank * 30])
    assert torch.equal(get(x[:, 0] > 0), x[x[:, 0] > 0])
    assert torch.equal(get(np.array([-1 + world.rank + 1])), x[[world.rank]])
    assert get(torch.empty(0, dtype=torch.int64)).shape == (0, 7)
    held = store._tensors["n", "x"]
    rows = held.rows if placement == "sharded" else held
    return len(rows), identity(rows)


@pytest.mark.parametrize(
    ("placement", "how", "chunk"), [("sharded", "parts", 300), ("sharded", "whole", 1), ("shared", "first", 1 << 20)]
)
def test_any_rank_gets_any_rows(launcher, two_nodes, placement, how, chunk):
    seen = launcher.run(put_and_get, placement, how, chunk, node_of=FOUR, nodes=two_nodes)
    rows = [51, 51, 52, 52] if placement == "sharded" else [103] * 4
    assert [s[0] for s in seen] == rows
    assert seen[0][1] == seen[1][1] is not None  # one copy per node
    assert seen[2][1] == seen[3][1] != seen[0][1]


def put_rows_of_nodes():
    manyhop.init()
    x, stores = tensors()["x"], [FeatureStore(placement=place) for place in ("sharded", "process")]
    stores[0].put_tensor(x, group_name=None, attr_name="x", index=None)
    stores[1].put_tensor(stores[0].sharded_rows[0], group_name=None, attr_name="x", index=None)
    return torch.equal(stores[1].get_tensor(group_name=None, attr_name="x", index=None), x)


def test_rows_of_nodes_are_put_as_they_are(launcher):
    assert launcher.run(put_rows_of_nodes, node_of=[0, 1]) == [True, True]


def put_wrongly(what):
    rank = manyhop.init().rank
    store, x = FeatureStore(placement="sharded", rank_timeout=100.0), torch.zeros(10, 2)
    where = {"group_name": None, "attr_name": "x"}
    try:
        if what == "gap":
            store.put_tensor(x[:4], index=slice(rank * 5, rank * 5 + 4), **where)
        elif what == "dtype":
            store.put_tensor(x if rank else x.int(), index=None, **where)
        elif what == "sparse":
            store.put_tensor(x.to_sparse() if rank else x, index=None, **where)
        elif what == "mixed":
            store.put_tensor(x, index=slice(0, 10) if rank else None, **where)
        elif what == "length":
            store.put_tensor(x, index=slice(rank * 10, rank * 10 + 9), **where)
        elif what == "csc":
            GraphStore(placement="shared").put_edge_index((x[0].long(), x[0].long()), layout="csc", edge_type=None)
        else:
            edges = torch.arange(6).view(2, 3)
            GraphStore(placement=what).put_edge_index(edges, layout="coo", edge_type=None, size=(6, 6))
    except ManyhopError as error:
        return type(error).__name__, str(error)


WRONG = [
    ("gap", ["FeatureError", "FeatureError"], "rank 1 with rows 5 to 9 where row 4 is expected"),
    ("dtype", ["RankError", "RankError"], "expected the same dtype on all ranks"),
    ("sparse", ["RankError", "FeatureError"], "as a dense tensor or array in CPU memory"),
    ("mixed", ["FeatureError", "FeatureError"], "either whole on all ranks or in parts on all ranks"),
    ("length", ["FeatureError", "FeatureError"], "index=slice(begin, begin + 10)"),
    ("csc", ["GraphError", "GraphError"], "Expected parts of edges as 'coo'"),
    ("shared", ["GraphError", "GraphError"], "got the same 3 on ranks 0 and 1: each would be stored twice"),
    ("distributed", ["GraphError", "GraphError"], "got the same 3 on ranks 0 and 1: each would be stored twice"),
]


def test_what_does_not_fit_together_is_an_error_on_all_ranks(launcher):
    found = launcher.run_each(put_wrongly, [(what,) for what, _, _ in WRONG], node_of=[0, 1])
    for (what, kinds, text), seen in zip(WRONG, found, strict=True):
        assert [s[0] for s in seen] == kinds, what
        assert all(text in s[1] for s in seen), what


def join_edges():
    from manyhop.memory.mapped_files import identity

    rank = manyhop.init().rank
    store = GraphStore(placement="shared", rank_timeout=100.0)
    part = torch.arange(2 * rank).view(2, -1) % 5
    store.put_edge_index(part, edge_type=None, layout="coo", size=(5, 5))
    row, col = store.get_edge_index(edge_type=None, layout="coo", size=(5, 5))
    return row.tolist(), col.tolist(), identity(row)


def test_parts_of_edges_follow_each_other(launcher, two_nodes):
    seen = launcher.run(join_edges, node_of=FOUR, nodes=two_nodes)
    expected = torch.cat([torch.arange(2 * rank).view(2, -1) % 5 for rank in range(4)], 1)
    assert all(list(s[:2]) == expected.tolist() for s in seen)
    assert seen[0][2] == seen[1][2] != seen[2][2] == seen[3][2]


def test_one_process_puts_whole_tensors_and_parts():
    store = FeatureStore(placement="sharded")
    x = torch.randn(6, 2)
    store.put_tensor(x, group_name=None, attr_name="x", index=None)
    assert store.get_tensor(group_name=None, attr_name="x", index=None).data_ptr() == x.data_ptr()
    store.put_tensor(x, group_name=None, attr_name="y", index=slice(0, 6))
    assert torch.equal(store.get_tensor(group_name=None, attr_name="y", index=torch.tensor([4])), x[[4]])
    assert not store.sharded_rows
    with pytest.raises(FeatureError, match="only replaced as a whole"):
        store.put_tensor(x[:2], group_name=None, attr_name="x", index=torch.tensor([0, 3]))
    with pytest.raises(FeatureError, match=r"row 0 comes next|follow each other"):
        store.put_tensor(x[:2], group_name=None, attr_name="x", index=slice(4, 6))
    manyhop.shutdown()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"placement": "moon"},
        {"placement": "shared", "cache": 0.1},
        {"placement": "sharded", "cache": 1.5},
        {"placement": "sharded", "cache": -1},
        {"placement": "sharded", "cache": True},
        {"placement": "sharded", "cache": "1 GB"},
        {"placement": "sharded", "rank_timeout": 0},
        {"rank_timeout": 5.0},
    ],
)
def test_arguments_are_checked(kwargs):
    with pytest.raises(InputError, match="Expected"):
        FeatureStore(**kwargs)


def test_arguments_of_graph_stores_are_checked():
    for kwargs in ({"placement": "mapped"}, {"rank_timeout": 5.0}, {"placement": "shared", "rank_timeout": -1.0}):
        with pytest.raises(InputError, match="Expected"):
            GraphStore(**kwargs)
    with pytest.raises(GraphError, match="as 'coo'"):
        GraphStore(placement="shared").put_edge_index(([0], [0, 1]), edge_type=None, layout="csc", size=(1, 1))
