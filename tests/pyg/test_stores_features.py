"""The FeatureStore by itself."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import TensorAttr
from torch_geometric.data.feature_store import AttrView, _FieldStatus
from torch_geometric.typing import TensorFrame

import manyhop_pyg.data.feature_store as module
from manyhop.errors import FeatureError
from manyhop_pyg import FeatureStore

WRITES = ("author", "writes", "paper")


@pytest.fixture
def store():
    store = FeatureStore()
    store["paper", "x", None] = torch.arange(12.0).view(6, 2)
    store["author", "x", None] = np.arange(9, dtype=np.float32).reshape(3, 3)
    store.put_tensor(torch.arange(4), group_name=WRITES, attr_name="time", index=None)
    store.put_tensor(torch.arange(6), TensorAttr(None, "z", None))
    return store


def test_get_and_views(store):
    x = torch.arange(12.0).view(6, 2)
    ids = torch.tensor([4, 0, 4])
    for got in (
        store["paper", "x", ids],
        store["paper"].x[ids],
        store["paper", "x"][ids],
        store["paper"]["x"][ids],
        store.get_tensor("paper", "x", ids),
        store.get_tensor(TensorAttr("paper", "x", ids)),
        store.get_tensor({"group_name": "paper", "attr_name": "x", "index": ids}),
        store.view("paper").x[ids],
    ):
        assert torch.equal(got, x[ids])
    assert isinstance(store["paper"], AttrView)
    assert store["paper", "x"] == store.view("paper", "x")
    assert torch.equal(store["paper", "x"](), x)
    assert torch.equal(store[None, "z", None], torch.arange(6))
    assert torch.equal(store.get_tensor(group_name=WRITES, attr_name="time", index=ids[1:2]), torch.tensor([0]))
    with pytest.raises(ValueError, match="not fully specified"):
        store.get_tensor("paper", "x")
    with pytest.raises(ValueError, match="not fully specified"):
        store.multi_get_tensor([TensorAttr("paper", "x")])
    with pytest.raises(NotImplementedError):
        iter(store)
    assert store == store
    assert store != FeatureStore()
    assert store["paper"] == AttrView(store, TensorAttr("paper"))
    assert store["paper"] != AttrView(store, TensorAttr("author"))
    assert TensorAttr("paper", "x") == store.get_all_tensor_attrs()[0] != TensorAttr("paper", "y")
    assert store.get_all_tensor_attrs()[0] != "paper"
    assert TensorAttr("paper", "x", ids) != store.get_all_tensor_attrs()[0]
    assert repr(store) == "FeatureStore()"


@pytest.mark.parametrize("group", ["paper", "author"])
def test_kinds_of_index(store, group):
    whole = store[group, "x", None]
    assert store[group, "x", slice(None)] is whole
    want = torch.as_tensor(whole)
    n = len(want)
    ids = torch.tensor([2, 0])
    for index in (ids, ids.int(), ids.short(), ids.numpy(), ids.to(torch.uint16)):
        got = store[group, "x", index]
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, want[ids])
    mask = torch.arange(n) != 1
    assert torch.equal(store[group, "x", mask], want[mask])
    assert torch.equal(store[group, "x", mask.numpy()], want[mask])
    assert store[group, "x", torch.empty(0, dtype=torch.long)].shape == (0, want.size(1))
    for index in (slice(1, None), slice(0, 3, 2), slice(-2, None)):
        got = store[group, "x", index]
        assert type(got) is type(whole)
        assert np.shares_memory(np.asarray(got), np.asarray(whole))
        assert torch.equal(torch.as_tensor(got), want[index])
    assert torch.equal(store[group, "x", slice(None, None, -1)], want.flip(0))
    assert torch.equal(torch.as_tensor(store[group, "x", 2]), want[2])
    assert torch.equal(torch.as_tensor(store[group, "x", np.int64(1)]), want[1])
    assert torch.equal(store.get_tensor(TensorAttr(group, "x", ids.numpy())), want[ids])
    assert isinstance(store.get_tensor(group, "x", ids.numpy(), convert_type=True), np.ndarray)
    assert isinstance(store.get_tensor(group, "x", ids, convert_type=True), torch.Tensor)


@pytest.mark.parametrize(
    "index",
    [-1, 6, True, [0, 1], torch.tensor([0, 6]), torch.tensor([-1]), torch.tensor([0.0]), torch.zeros(2, 2).long(),
     torch.zeros(5, dtype=torch.bool)],
)  # fmt: skip
def test_bad_index(store, index):
    with pytest.raises(FeatureError, match=r"[Ee]xpected .*'x' of 'paper'"):
        store["paper", "x", index]


def test_an_edge_type_is_one_field(store):
    with pytest.raises(FeatureError, match="index='paper'"):
        store[WRITES]
    with pytest.raises(FeatureError, match="index='paper'"):
        store[WRITES] = torch.arange(4)
    with pytest.raises(FeatureError, match="group_name="):
        store.put_tensor(torch.arange(4), group_name=("a", "b"), attr_name="x", index=None)
    with pytest.raises(FeatureError, match="attr_name=None"):
        store["paper"]()


def test_all_attrs_are_fresh(store):
    attrs = store.get_all_tensor_attrs()
    assert [(a.group_name, a.attr_name) for a in attrs] == [
        ("paper", "x"), ("author", "x"), (WRITES, "time"), (None, "z")
    ]  # fmt: skip
    for attr in attrs:
        assert not attr.is_set("index")
        attr.index = torch.tensor([0])
    attrs[0].attr_name = "changed"
    assert all(not attr.is_set("index") for attr in store.get_all_tensor_attrs())
    assert store.get_all_tensor_attrs()[0].attr_name == "x"
    attr = TensorAttr("paper", "y", None)
    store.put_tensor(torch.arange(6), attr)
    attr.group_name = "changed"
    assert store.get_all_tensor_attrs()[-1].group_name == "paper"


def test_all_of_a_batch_is_one_gather(store, monkeypatch):
    calls = []

    def gather(requests, **kwargs):
        calls.append(len(list(requests)))
        return real(requests, **kwargs)

    real = module.gather
    monkeypatch.setattr(module, "gather", gather)
    attrs = store.get_all_tensor_attrs()
    for attr in attrs:
        attr.index = torch.tensor([1, 0])
    attrs[2].index = None
    paper, author, time, z = store.multi_get_tensor(attrs)
    assert calls == [3]
    assert torch.equal(paper, store["paper", "x", None][[1, 0]])
    assert torch.equal(author, torch.as_tensor(store["author", "x", None])[[1, 0]])
    assert torch.equal(time, torch.arange(4))
    assert torch.equal(z, torch.tensor([1, 0]))
    assert store.multi_get_tensor([]) == []


def test_sizes(store):
    assert store.get_tensor_size("paper", "x") == (6, 2)
    assert store.get_tensor_size(TensorAttr("author", "x")) == (3, 3)
    assert store.get_tensor_size("author", "x", slice(0, 2)) == (2, 3)
    assert store.get_tensor_size("author", "unknown") is None


def test_update_and_remove(store):
    x = torch.zeros(6, 2)
    assert store.update_tensor(x, "paper", "x", None)
    assert store["paper", "x", None] is x
    rows = torch.ones(2, 2)
    assert store.update_tensor(rows, "paper", "x", torch.tensor([5, 1]))
    assert x.sum(1).tolist() == [0, 2, 0, 0, 0, 2]
    store["paper", "x", slice(2, 4)] = rows * 2
    store["paper", "x", 0] = torch.tensor([7.0, 7.0])
    assert x.sum(1).tolist() == [14, 2, 4, 4, 0, 2]
    store["author", "x", np.array([True, False, True])] = np.zeros((2, 3), np.float32)
    assert store["author", "x", None].sum() == 12
    with pytest.raises(FeatureError, match=r"shape \[2, 2\], got \[3, 2\]"):
        store["paper", "x", slice(2, 4)] = torch.ones(3, 2)
    with pytest.raises(FeatureError, match="Pass the whole tensor first"):
        store["paper", "new", slice(2, 4)] = rows
    assert store.remove_tensor("paper", "x", None)
    assert not store.remove_tensor("paper", "x", None)
    del store["author", "x"]
    assert [a.attr_name for a in store.get_all_tensor_attrs()] == ["time", "z"]
    with pytest.raises(KeyError, match=r"does not hold 'x' of 'paper'. It holds: 'time' of \('author'"):
        store["paper", "x", None]
    with pytest.raises(FeatureError, match="It holds: nothing"):
        FeatureStore()["paper", "x", None]


@pytest.mark.parametrize("value", [[1, 2], torch.tensor(1.0), "abc", {"a": 1}, 3, None, np.float32(1)])
def test_what_has_no_rows_is_refused(store, value):
    with pytest.raises(FeatureError, match=r"Expected 'x' of 'paper' to be a tensor"):
        store["paper", "x", None] = value


def test_kinds_of_tensors(tmp_path):
    store = FeatureStore()
    ids = torch.tensor([3, 1, 3])
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.float64).reshape(5, 2))
    tensors = {
        "mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "half": torch.randn(5, 3, 2, dtype=torch.bfloat16),
        "flag": torch.tensor([True, False, True, True, False]),
        "strided": torch.randn(2, 5).t(),
        "sparse": torch.eye(5).to_sparse(),
        "leaf": torch.randn(5, 2, requires_grad=True),
    }
    for name, tensor in tensors.items():
        store[None, name, None] = tensor
        assert store[None, name, None] is tensor
        got = store[None, name, ids]
        want = torch.as_tensor(np.array(tensor) if name == "mapped" else tensor)
        want = want.to_dense()[ids] if name == "sparse" else want[ids]
        assert torch.equal(got.to_dense() if got.is_sparse else got, want)
        assert got.dtype == want.dtype
    assert store[None, "leaf", ids].requires_grad
    with pytest.raises(ValueError, match="read-only"):
        store[None, "mapped", ids] = np.zeros((3, 2))


def test_tensor_frames():
    torch_frame = pytest.importorskip("torch_frame", reason="pytorch-frame is not installed")
    frame = torch_frame.TensorFrame(
        feat_dict={torch_frame.numerical: torch.arange(10.0).view(5, 2)},
        col_names_dict={torch_frame.numerical: ["a", "b"]},
        y=torch.arange(5),
    )
    assert isinstance(frame, TensorFrame)
    store = FeatureStore()
    store["paper", "tf", None] = frame
    assert store["paper", "tf", None] is frame
    assert store["paper", "tf", torch.tensor([3, 1])].y.tolist() == [3, 1]
    assert store.get_tensor_size("paper", "tf") == (5,)
    with pytest.raises(FeatureError, match="cannot be replaced"):
        store["paper", "tf", slice(2)] = frame


def test_own_attributes():
    @dataclasses.dataclass
    class NameFirst(TensorAttr):
        version: int = _FieldStatus.UNSET

        def __init__(self, attr_name=_FieldStatus.UNSET, version=0, index=_FieldStatus.UNSET):
            super().__init__(None, attr_name, index)
            self.version = version

    store = FeatureStore(tensor_attr_cls=NameFirst)
    store["x", 1, None] = torch.arange(3)
    store["x", 2, None] = torch.arange(3) * 2
    assert store["x", 1, torch.tensor([2])].item() == 2
    assert store["x", 2, torch.tensor([2])].item() == 4
    assert [a.version for a in store.get_all_tensor_attrs()] == [1, 2]
    assert all(type(a) is NameFirst and not a.is_set("index") for a in store.get_all_tensor_attrs())


def test_copies_and_pickles(store):
    for other in (pickle.loads(pickle.dumps(store)), copy.deepcopy(store)):
        assert torch.equal(other["paper", "x", None], store["paper", "x", None])
        assert other["paper", "x", None] is not store["paper", "x", None]
    shallow = copy.copy(store)
    assert shallow["paper", "x", None] is store["paper", "x", None]
    del shallow["paper", "x"]
    assert store.get_tensor_size("paper", "x") == (6, 2)
    assert len(store.get_all_tensor_attrs()) == 4
