"""Features and stores: reading, updating, many at once, files, caches."""

import numpy as np
import pytest
import torch
from gb_graphs import read_many

import manyhop_dgl.graphbolt as gb
from manyhop.errors import FeatureError, InputError

ROWS = torch.arange(24.0).view(8, 3)
IDS = torch.tensor([7, 0, 0, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_rows_by_ids(dtype):
    rows = (ROWS > 5) if dtype == torch.bool else ROWS.to(dtype)
    feature = gb.TorchBasedFeature(rows)
    assert feature.read() is feature.read()
    assert torch.equal(feature.read(), rows)
    for ids in (IDS, IDS.int(), IDS.to(torch.uint8), IDS[:0]):
        assert torch.equal(feature.read(ids), rows[ids.long()])
    assert feature.size() == torch.Size([3])
    assert feature.count() == 8
    assert feature.metadata() == {}
    assert gb.TorchBasedFeature(rows, metadata={"unit": "m"}).metadata() == {"unit": "m"}


def test_memory_of_other_libraries_is_read_in_its_place():
    class Other:
        def __dlpack__(self, **_):
            return ROWS.__dlpack__()

        def __dlpack_device__(self):
            return ROWS.__dlpack_device__()

    for value in (Other(), ROWS.__dlpack__()):
        assert gb.TorchBasedFeature(value).read().data_ptr() == ROWS.data_ptr()
        with pytest.raises(FeatureError, match="greater than 1"):
            gb.TorchBasedFeature(ROWS[0].__dlpack__())


def test_updates():
    feature = gb.TorchBasedFeature(ROWS.clone())
    feature.update(torch.ones(2, 3), torch.tensor([1, 6]))
    expected = ROWS.clone()
    expected[[1, 6]] = 1
    assert torch.equal(feature.read(), expected)
    feature.update(ROWS + 1)
    assert torch.equal(feature.read(IDS), ROWS[IDS] + 1)
    with pytest.raises(FeatureError, match=r"size of the feature is torch.Size\(\[3\]\)"):
        feature.update(torch.ones(1, 2), torch.tensor([1]))
    with pytest.raises(FeatureError, match=r"torch.float64"):
        feature.update(torch.ones(1, 3, dtype=torch.float64), torch.tensor([1]))
    for value, message in (([[1.0]], "must be torch.Tensor"), (torch.ones(8), "greater than 1, but got 1 dimension")):
        with pytest.raises(FeatureError, match=message):
            feature.update(value)
    assert torch.equal(feature.read(IDS), ROWS[IDS] + 1)


@pytest.mark.parametrize(
    "value",
    [torch.rand(8, 5), torch.arange(8).view(8, 1), torch.rand(3, 8).t(), torch.rand(2, 3, 4).half(), torch.rand(0, 3)],
    ids=["wider", "int64", "strided", "fewer rows", "none"],
)
def test_an_update_without_ids_replaces_the_tensor(value):
    features = store()
    features.update("node", "user", "x", value)
    assert torch.equal(features.read("node", "user", "x"), value)
    assert features.read("node", "user", "x").dtype == value.dtype
    assert features.size("node", "user", "x") == value.shape[1:]
    assert features.count("node", "user", "x") == len(value)
    ids = torch.arange(len(value)).flip(0)
    assert torch.equal(read_many(features, [("node", "user", "x", ids)])[0], value[ids])
    with pytest.raises(FeatureError, match=rf"in \[0, {len(value)}\)"):
        features.read("node", "user", "x", torch.tensor([len(value)]))


def test_wrong_features_and_ids():
    with pytest.raises(FeatureError, match=r"must be torch.Tensor"):
        gb.TorchBasedFeature(np.ones((2, 2)))
    with pytest.raises(FeatureError, match="greater than 1, but got 1 dimension"):
        gb.TorchBasedFeature(torch.ones(3))
    for ids in (torch.tensor([8]), torch.tensor([-1])):
        with pytest.raises(FeatureError, match=r"in \[0, 8\)"):
            gb.TorchBasedFeature(ROWS).read(ids)
    with pytest.raises(FeatureError, match="1-dimensional tensor of integers"):
        gb.TorchBasedFeature(ROWS).read(torch.tensor([1.0]))


def store(cls=gb.BasicFeatureStore):
    return cls(
        {
            ("node", "user", "x"): gb.TorchBasedFeature(ROWS),
            ("node", "item", "x"): gb.TorchBasedFeature(ROWS.int()),
            ("edge", "user:likes:item", "w"): gb.TorchBasedFeature(ROWS[:, :1]),
        }
    )


def test_stores():
    features = store()
    assert len(features) == 3
    assert features.keys()[0] == ("node", "user", "x")
    assert ("node", "user", "x") in features
    assert torch.equal(features.read("node", "user", "x", IDS), ROWS[IDS])
    assert torch.equal(features.read("node", "user", "x"), ROWS)
    assert features.size("edge", "user:likes:item", "w") == torch.Size([1])
    assert features.count("node", "item", "x") == 8
    assert features.metadata("node", "item", "x") == {}
    features.update("node", "item", "x", torch.zeros(1, 3, dtype=torch.int32), torch.tensor([2]))
    assert features.read("node", "item", "x", torch.tensor([2])).sum() == 0
    features["node", "user", "y"] = gb.TorchBasedFeature(ROWS + 1)
    assert torch.equal(features["node", "user", "y"].read(), ROWS + 1)
    with pytest.raises(FeatureError, match=r"got 'z' of node type 'user'"):
        features.read("node", "user", "z")
    with pytest.raises(FeatureError, match=r"got 'x' of the nodes"):
        features.read("node", None, "x")


class _OthersFeature:
    """A feature as other libraries have them."""

    def read(self, ids=None):
        return ROWS * 2 if ids is None else ROWS[ids] * 2

    def size(self):
        return torch.Size([3])


class _OthersStore:
    def read(self, domain, type_name, feature_name, ids=None):
        assert (domain, type_name, feature_name) == ("node", None, "x")
        return ROWS[ids] * 3


def test_features_of_others():
    features = gb.BasicFeatureStore(
        {("node", None, "x"): _OthersFeature(), ("node", None, "y"): gb.TorchBasedFeature(ROWS)}
    )
    x, y = read_many(features, [("node", None, "x", IDS), ("node", None, "y", IDS)])
    assert torch.equal(x, ROWS[IDS] * 2)
    assert torch.equal(y, ROWS[IDS])
    assert torch.equal(read_many(_OthersStore(), [("node", None, "x", IDS)])[0], ROWS[IDS] * 3)


def test_what_is_no_feature():
    for feature, message in (
        (ROWS, r"for \('node', None, 'x'\), got a Tensor: put it into a TorchBasedFeature"),
        (ROWS.numpy(), "a method read, for .* got a ndarray$"),
    ):
        with pytest.raises(InputError, match=message):
            gb.BasicFeatureStore({("node", None, "x"): feature})
    features = gb.BasicFeatureStore({})
    with pytest.raises(InputError, match="TorchBasedFeature"):
        features["node", None, "x"] = ROWS
    with pytest.raises(InputError, match=r"by \(domain, type, name\).* got 'x'"):
        features["x"] = gb.TorchBasedFeature(ROWS)
    assert len(features) == 0


def test_reads_that_users_have_changed_are_used():
    class Doubled(gb.TorchBasedFeature):
        def read(self, ids=None):
            return super().read(ids) * 2

    class Zero(gb.BasicFeatureStore):
        def read(self, domain, type_name, feature_name, ids=None):
            return super().read(domain, type_name, feature_name, ids) * 0

    request = [("node", "user", "x", IDS)]
    changed = gb.BasicFeatureStore({("node", "user", "x"): Doubled(ROWS)})
    assert torch.equal(read_many(changed, request)[0], ROWS[IDS] * 2)
    assert torch.equal(read_many(store(Zero), request)[0], ROWS[IDS] * 0)


def test_features_in_files(tmp_path):
    np.save(tmp_path / "x.npy", ROWS.numpy())
    np.save(tmp_path / "flat.npy", np.arange(8))
    torch.save(ROWS + 1, tmp_path / "y.pt")
    described = [
        gb.OnDiskFeatureData(
            domain="node", type="user", name="x", format="numpy", path=str(tmp_path / "x.npy"), in_memory=False
        ),
        gb.OnDiskFeatureData(
            domain="node", name="flat", format="numpy", path=str(tmp_path / "flat.npy"), extra_fields={"a": 1}
        ),
        gb.OnDiskFeatureData(domain="edge", type="a:b:c", name="y", format="torch", path=str(tmp_path / "y.pt")),
        gb.OnDiskFeatureData(domain="edge", name="z", format="torch", path=str(tmp_path / "y.pt"), in_memory=False),
    ]
    features = gb.TorchBasedFeatureStore(described)
    kinds = [type(features[key]) for key in features.keys()]  # noqa: SIM118  # a store has no iterator
    assert kinds == [gb.DiskBasedFeature, gb.TorchBasedFeature, gb.TorchBasedFeature, gb.TorchBasedFeature]
    assert features.to("cpu")["node", "user", "x"] is features["node", "user", "x"]
    assert torch.equal(features.read("node", "user", "x", IDS), ROWS[IDS])
    assert torch.equal(features.read("node", None, "flat", IDS), IDS.view(-1, 1))
    assert features.metadata("node", None, "flat") == {"a": 1}
    assert torch.equal(features.read("edge", "a:b:c", "y"), ROWS + 1)
    assert torch.equal(features.read("edge", None, "z", IDS), ROWS[IDS] + 1)
    features.update("node", "user", "x", torch.zeros(8, 5))
    assert np.array_equal(np.load(tmp_path / "x.npy"), ROWS.numpy())  # the file stays as it is
    assert torch.equal(features.to("cpu").read("node", "user", "x"), torch.zeros(8, 5))
    assert "TorchBasedFeatureStore(" in repr(features)
    assert features.is_pinned() is False
    with pytest.raises(InputError, match="'node', 'edge', 'graph'"):
        gb.OnDiskFeatureData(domain="nodes", name="x", format="numpy", path="x")
    with pytest.raises(InputError, match="'torch', 'numpy'"):
        gb.OnDiskFeatureData(domain="node", name="x", format="csv", path="x")


@pytest.mark.parametrize(
    ("name", "content", "fmt", "message"),
    [
        ("x.npy", b"\x93NUMPY\x01\x00", "numpy", "truncated"),
        ("x.npy", None, "numpy", "Expected this file"),
        ("x.pt", b"nonsense", "torch", "cannot be read"),
        ("x.npy", "short", "numpy", r"expected .* bytes"),
        ("x.pt", {"a": 1}, "torch", "got a dict"),
        ("x.pt", {"code": print}, "torch", "cannot be read"),
    ],
)
def test_damaged_files(tmp_path, name, content, fmt, message):
    path = tmp_path / name
    if content == "short":
        np.save(path, ROWS.numpy())
        path.write_bytes(path.read_bytes()[:-4])
    elif isinstance(content, dict):
        torch.save(content, path)
    elif content is not None:
        path.write_bytes(content)
    described = gb.OnDiskFeatureData(domain="node", name="x", format=fmt, path=str(path), in_memory=fmt == "torch")
    with pytest.raises(InputError, match=message) as caught:
        gb.TorchBasedFeatureStore([described])
    assert str(path) in str(caught.value)


@pytest.mark.gpu
def test_features_on_a_gpu():
    rows = torch.randn(1000, 5)
    ids = torch.randint(0, 1000, (300,), device="cuda")
    pinned = gb.TorchBasedFeature(rows.clone()).pin_memory_()
    assert pinned.is_pinned()
    beside = [torch.ones(50) for _ in range(200)]
    kept = gb.TorchBasedFeature(torch.randn(300, 5)).pin_memory_()
    assert sum(float(x.cuda().sum()) for x in beside) == 10_000  # what lies beside pinned memory can be copied
    assert kept.is_pinned()
    for feature in (gb.TorchBasedFeature(rows), pinned, gb.TorchBasedFeature(rows).to("cuda")):
        got = feature.read(ids)
        assert got.is_cuda
        assert torch.equal(got.cpu(), rows[ids.cpu()])
    assert pinned.read().is_cuda
    for feature in (pinned, gb.TorchBasedFeature(rows).to("cuda")):
        wide = torch.randn(1000, 9)
        feature.update(wide)
        assert torch.equal(feature.read(ids).cpu(), wide[ids.cpu()])
    assert gb.TorchBasedFeature(rows).to("pinned").is_pinned()


@pytest.mark.parametrize(
    ("value", "ids", "message"),
    [
        (torch.ones(4, 1), torch.tensor([False, False, True, True]), "ids as ids, got torch.bool, a dtype of masks"),
        (torch.ones(1, 1), torch.tensor(3), r"1-dimensional tensor of integers, got torch.int64 of shape \[\]"),
        (torch.ones(1, 1), torch.tensor([4]), r"ids in \[0, 4\), got 4"),
        (torch.ones(2, 1), torch.tensor([1]), "must have the same length"),
        (torch.ones(1, 1).to_sparse(), torch.tensor([1]), "as a dense tensor in memory"),
    ],
)
def test_rows_are_changed_where_ids_say_so_only(value, ids, message):
    feature = gb.TorchBasedFeature(torch.zeros(4, 1))
    with pytest.raises(FeatureError, match=message):
        feature.update(value, ids)
    with pytest.raises(FeatureError, match="dense tensor in memory"):
        gb.TorchBasedFeature(torch.zeros(4, 1).to_sparse())
    assert not feature.read().any()
