"""Tensors in files: round trips, and every kind of damage."""

import contextlib
import gc
import hashlib
import json
import weakref
import zlib

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhop import files
from manyhop.errors import FeatureError, InputError
from manyhop.files.dtypes import _BY_NAME
from manyhop.system.arrays import bytes_of

NUMPY = [d for n, d in _BY_NAME.items() if not n.startswith(("bfloat", "float8"))]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor.shape


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.numel() == 0 or bool((bits(a) == bits(b)).all())


def make(shape, dtype):
    """Any bits, but for bool, which has two."""
    high = 2 if dtype == torch.bool else 256
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, high, (count,), dtype=torch.uint8).view(dtype).view(shape)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    dtype=st.sampled_from(list(_BY_NAME.values())),
    kind=st.sampled_from([".npy", ".bin", ".safetensors"]),
    data=st.data(),
)
@example(shape=[2], dtype=torch.complex128, kind=".safetensors", data=None)
@example(shape=[2], dtype=torch.bfloat16, kind=".npy", data=None)
def test_round_trip(tmp_path_factory, shape, dtype, kind, data):
    x = make(shape, dtype)
    path = tmp_path_factory.mktemp("f") / f"x{kind}"
    if (kind == ".npy" and dtype not in NUMPY) or (kind == ".safetensors" and dtype == torch.complex128):
        with pytest.raises(InputError, match=r"cannot hold|safetensors files have"):
            files.write(path, x)
        assert list(path.parent.iterdir()) == []
        return
    rows = files.write(path, x)
    assert (rows.shape, rows.dtype, rows.nbytes, rows.can_map) == (tuple(shape), dtype, x.nbytes, True)
    same(rows.mapped(), x)
    same(rows.read(), x)
    begin = data.draw(st.integers(0, shape[0]))
    end = data.draw(st.integers(begin, shape[0]))
    same(rows.read(begin, end, threads=2), x[begin:end])


@pytest.mark.parametrize("kind", [".npy", ".bin", ".safetensors"])
def test_views_of_other_memory(tmp_path, kind):
    """Strides, conjugates and negatives that torch has not written to memory, and strides of a single entry."""
    x, z = torch.rand(7, 6), torch.rand(7, 2, dtype=torch.complex64)
    views = [x[:, 1], x.t(), x[:, ::2], x[3:4, 1], x[:, :0], x[0].expand(4, 6), torch._neg_view(x), z.conj()]
    for k, view in enumerate([*views, z.conj().imag, z.conj().imag[:1, 1], x[:, 1].requires_grad_()]):
        rows = files.write(tmp_path / f"{k}{kind}", view)
        rows.verify()
        same(rows.mapped(), torch.empty(view.shape, dtype=view.dtype).copy_(view.detach()))


def test_bytes_hold_the_tensor():
    memory = np.arange(8)
    alive = weakref.ref(memory)
    data = bytes_of(torch.from_numpy(memory)[2:])
    del memory
    assert data == np.arange(2, 8).view(np.uint8).data
    del data
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", [d for d in _BY_NAME.values() if "e8m0" not in str(d)], ids=str)
def test_safetensors_agrees_with_the_package(tmp_path, dtype):
    package = pytest.importorskip("safetensors.torch")
    if dtype == torch.complex128:
        with pytest.raises(InputError, match="safetensors files have"):
            files.write(tmp_path / "x.safetensors", make((3, 2), dtype))
        return
    a, b = make((7, 3), dtype), make((5,), torch.int64)
    package.save_file({"a": a, "b": b}, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert sorted(files.names(tmp_path / "theirs.safetensors")) == ["a", "b"]
    same(files.open(tmp_path / "theirs.safetensors", name="a").mapped(), a)
    same(files.open(tmp_path / "theirs.safetensors", name="b").read(), b)
    files.write(tmp_path / "ours.safetensors", a)
    same(package.load_file(tmp_path / "ours.safetensors")["data"], a)


def test_npy_agrees_with_numpy(tmp_path):
    for i, dtype in enumerate(NUMPY):
        x = make((4, 3), dtype)
        files.write(tmp_path / f"{i}.npy", x)
        assert np.load(tmp_path / f"{i}.npy").tobytes() == x.numpy().tobytes()
        np.save(tmp_path / "theirs.npy", x.numpy())
        same(files.open(tmp_path / "theirs.npy").mapped(), x)


def test_many_rows_in_pieces(tmp_path):
    """More than one piece per thread, and rows that are cut at the edges of pieces."""
    x = torch.arange(3_000_000, dtype=torch.int64).view(-1, 3)
    for k, part in enumerate(x.split(400_000)):
        files.write(tmp_path / f"{k}.npy", part)
    rows = files.open([tmp_path / f"{k}.npy" for k in range(3)])
    assert not rows.can_map
    with pytest.raises(InputError, match="several cannot"):
        rows.mapped()
    for begin, end in [(0, None), (399_999, 400_001), (1, 999_999), (5, 5), (800_000, 1_000_000)]:
        for threads in (1, 3):
            assert rows.read(begin, end, threads=threads).equal(x[begin:end])
    out = torch.zeros(20, 3, dtype=torch.int64)
    assert rows.read(399_990, 400_000, out=out[5:15]).data_ptr() == out[5].data_ptr()
    assert out[5:15].equal(x[399_990:400_000])
    assert not out[:5].any()
    assert not out[15:].any()
    joined = files.write(tmp_path / "joined.npy", rows)
    assert joined.mapped().equal(x)


def test_a_mapping_is_private(tmp_path):
    x = files.write(tmp_path / "x.npy", torch.arange(5)).mapped()
    x += 1
    assert files.open(tmp_path / "x.npy").read().tolist() == [0, 1, 2, 3, 4]


def test_reading_only_some_rows_reads_only_those(tmp_path):
    """A file with a hole of a tebibyte."""
    path = tmp_path / "x.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 16)
        file.write(bytes([1] * 16))
    (tmp_path / "x.bin.json").write_text('{"shape": [68719476736, 4], "dtype": "float32"}')
    rows = files.open(path)
    last = rows.read(rows.num_rows - 2)
    assert last[0].tolist() == [0, 0, 0, 0]
    assert last[1].view(torch.uint8).tolist() == [1] * 16
    assert rows.mapped()[-1].equal(last[1])


# What a manifest can say


def manifest(tmp_path, x, **more):
    (tmp_path / "x.bin").write_bytes(x.numpy().tobytes())
    text = {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch."), **more}
    (tmp_path / "x.bin.json").write_text(json.dumps(text))
    return tmp_path / "x.bin"


def test_checksums(tmp_path):
    x = torch.arange(20_000, dtype=torch.int32).view(-1, 2)
    data = x.numpy().tobytes()
    sums = {"crc32": f"{zlib.crc32(data):08x}", "sha256": hashlib.sha256(data).hexdigest()}
    for name, good in sums.items():
        path = manifest(tmp_path, x, **{name: good.upper()})
        files.open(path).verify(progress=False)
        assert files.open(path).read().equal(x)
        bad = good[:-1] + ("0" if good[-1] != "0" else "1")
        rows = files.open(manifest(tmp_path, x, **{name: bad}))
        for call in (rows.verify, rows.read):
            with pytest.raises(InputError, match=f"x.bin: its {name} is not the {bad}"):
                call()
        assert rows.read(1).equal(x[1:])  # not the whole file


def test_parts_of_a_manifest(tmp_path):
    x = torch.arange(12, dtype=torch.float64).view(6, 2)
    parts = []
    for k, rows in enumerate([1, 5]):
        data = x[[0, 1][k] :][:rows].numpy().tobytes()
        (tmp_path / f"{k}.raw").write_bytes(data)
        parts.append({"file": f"{k}.raw", "rows": rows, "crc32": f"{zlib.crc32(data):08x}"})
    (tmp_path / "x.json").write_text(json.dumps({"shape": [6, 2], "dtype": "float64", "parts": parts}))
    assert files.open(tmp_path / "x.json").read().equal(x)
    (tmp_path / "1.raw").write_bytes(bytes(80))
    with pytest.raises(InputError, match=r"1\.raw: its crc32"):
        files.open(tmp_path / "x.json").verify()
    assert files.open(tmp_path / "x.json").read(0, 1).equal(x[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float33"}, "expected a dtype"),
        ({"dtype": None}, "expected a dtype"),
        ({"dtype": "float64"}, "expected 96 bytes .* got 48"),
        ({"shape": [7, 2]}, "expected 56 bytes"),
        ({"shape": [5, 2]}, "expected 40 bytes"),
        ({"shape": []}, "at least one dimension"),
        ({"shape": [-6, 2]}, "non-negative integers"),
        ({"shape": [6.0, 2]}, "non-negative integers"),
        ({"shape": "6x2"}, "non-negative integers"),
        ({"crc32": "12"}, "8 hexadecimal digits"),
        ({"md5": "12"}, "expected only"),
        ({"parts": {}}, "list"),
        ({"parts": [{"file": "x.bin", "rows": 3}]}, "expected 24 bytes"),
        ({"parts": [{"file": "../x.bin", "rows": 6}]}, "inside"),
        ({"parts": [{"file": "/etc/passwd", "rows": 6}]}, "inside"),
        ({"parts": [{"file": "y.bin", "rows": 6}]}, "no such file"),
        ({"parts": [{"rows": 6}]}, "'file' and 'rows'"),
        ({"parts": []}, "rows of its parts"),
    ],
)
def test_wrong_manifests(tmp_path, change, message):
    path = manifest(tmp_path, torch.zeros(6, 2), **change)
    with pytest.raises(InputError, match=message):
        files.open(path)


def test_manifests_that_are_none(tmp_path):
    path = manifest(tmp_path, torch.zeros(6, 2))
    (tmp_path / "x.bin.json").write_text("[1]")
    with pytest.raises(InputError, match="expected a JSON object"):
        files.open(path)
    (tmp_path / "x.bin.json").unlink()
    with pytest.raises(InputError, match="needs this manifest"):
        files.open(path)


# Damage


@pytest.mark.parametrize("kind", [".npy", ".bin", ".safetensors"])
def test_truncated_files(tmp_path, kind):
    path = tmp_path / f"x{kind}"
    rows = files.write(path, torch.arange(1000))
    whole = path.read_bytes()
    for left in (len(whole) - 1, len(whole) - 4096, 40, 9, 3, 0):
        path.write_bytes(whole[:left])
        with pytest.raises(InputError, match=r"x\."):
            files.open(path)
        for late in (rows.read, rows.mapped):  # opened before the file was cut
            with pytest.raises(InputError, match="truncated"):
                late()


@settings(deadline=None, max_examples=150)
@given(kind=st.sampled_from([".npy", ".safetensors"]), position=st.integers(0, 190), value=st.integers(0, 255))
def test_damaged_headers_raise_nothing_else(tmp_path_factory, kind, position, value):
    path = tmp_path_factory.mktemp("f") / f"x{kind}"
    files.write(path, torch.arange(30).view(10, 3))
    data = bytearray(path.read_bytes())
    data[position] = value
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        files.open(path, name=(files.names(path) or [None])[0]).read()


def test_unknown_and_missing_files(tmp_path):
    (tmp_path / "x.csv").write_text("1")
    for path, message in [
        ("x.csv", "expected one of .npy"),
        ("y.npy", "no such file"),
        ("y.parquet", "no such file"),
    ]:
        with pytest.raises(InputError, match=message):
            files.open(tmp_path / path)
    with pytest.raises(InputError, match=r"expected one of \.npy.*got ''"):
        files.open(tmp_path)
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(InputError, match="a folder there"):
        files.open(tmp_path / "d.npy")
    with pytest.raises(InputError, match="at least one"):
        files.open([])


def test_arrays_that_are_refused(tmp_path):
    for array, message in [
        (np.array([{}], dtype=object), "never unpickled"),
        (np.asfortranarray(np.zeros((3, 2))), "Fortran"),
        (np.zeros(3, ">f4"), "byte order"),
        (np.zeros(3, "U2"), "dtype that torch has"),
        (np.zeros(3, [("a", "i4")]), "dtype that torch has"),
        (np.float64(1), "single number"),
    ]:
        np.save(tmp_path / "x.npy", array, allow_pickle=True)
        with pytest.raises(InputError, match=message):
            files.open(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(3.0)[:, None]))
    assert files.open(tmp_path / "x.npy").read().shape == (3, 1)


def test_lists_of_unequal_files(tmp_path):
    a = files.write(tmp_path / "a.npy", torch.zeros(3, 2)).paths[0]
    b = files.write(tmp_path / "b.npy", torch.zeros(3, 3)).paths[0]
    c = files.write(tmp_path / "c.npy", torch.zeros(3, 2, dtype=torch.int64)).paths[0]
    for other in (b, c):
        with pytest.raises(InputError, match="expected rows as in"):
            files.open([a, other])


def test_safetensors_headers(tmp_path):
    path = tmp_path / "x.safetensors"

    def write(header, data=bytes(16)):
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    write({"a": good, "__metadata__": {"x": "y"}})
    assert files.open(path).read().tolist() == [[0, 0], [0, 0]]
    for change in (
        {"dtype": "F33"},
        {"shape": [2, 3]},
        {"data_offsets": [0, 17]},
        {"data_offsets": [16, 32]},
        {"data_offsets": [8]},
        {"data_offsets": None},
        {"data_offsets": [-4, 12]},
        {"shape": None},
    ):
        write({"a": {**good, **change}})
        with pytest.raises(InputError, match=r"x\.safetensors"):
            files.open(path)
    write({"a": good, "b": good})
    for name in (None, "c"):
        with pytest.raises(InputError, match=r"expected name to be a tensor of \['a', 'b'\]"):
            files.open(path, name=name)
    with pytest.raises(InputError, match="one tensor"):
        files.open(path, name=["a", "b"])
    write({"a": good} | {"pad": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    begin = int.from_bytes(path.read_bytes()[:8], "little")
    rows = files.open(path, name="a")
    if begin % 4:
        with pytest.raises(InputError, match="multiple of 4"):
            rows.mapped()
    assert rows.read().shape == (2, 2)


def test_wrong_arguments(tmp_path):
    rows = files.write(tmp_path / "x.npy", torch.zeros(6, 2))
    for begin, end in [(-1, 2), (3, 2), (0, 7)]:
        with pytest.raises(InputError, match="begin"):
            rows.read(begin, end)
    with pytest.raises(InputError, match="at least 1 thread"):
        rows.read(threads=0)
    for out in (torch.zeros(5, 2), torch.zeros(6, 2).double(), torch.zeros(2, 6).T, torch.zeros(6, 2, device="meta")):
        with pytest.raises(FeatureError, match="Expected out"):
            rows.read(out=out)
    with pytest.raises(InputError, match="without a name"):
        files.open(tmp_path / "x.npy", name="x")
    with pytest.raises(InputError, match="to write, got"):
        files.write(tmp_path / "x.parquet", torch.zeros(3))
    with pytest.raises(InputError, match="single number"):
        files.write(tmp_path / "x.npy", torch.tensor(1))
