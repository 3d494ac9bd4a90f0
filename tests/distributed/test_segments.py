"""Memory that is shared without a name, and objects in it; all in one process."""

import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyhop.errors import CapacityError, InputError
from manyhop.memory import mapped_files, segments, sharing
from manyhop.memory.copies import Copy
from manyhop.memory.mapped_files import MappedFiles, identity
from manyhop.memory.sharing import pack, unpack


def through(value: Any) -> Any:
    """What a process gets that is handed the descriptors alone: mapped anew, at another address."""
    packed = pack("a test", value)
    message, fds = packed.message(), [os.dup(segment.fd) for segment in packed.segments]
    del packed
    assert not [id for id in message["segments"] if segments.find(id)]
    return unpack(Copy.of(message, fds))


def in_segment(tensor: torch.Tensor) -> bool:
    return segments.where(tensor.data_ptr()) is not None


def num_fds() -> int:
    """How many segments are open: what earlier tests left running may open other files."""
    return sum("/memfd:manyhop" in os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("size", [1, 5000, (1 << 21) - 1, 1 << 21, (5 << 20) + 3])
def test_a_segment_holds_what_was_written_and_goes_with_its_last_view(size: int) -> None:
    fds = num_fds()
    segment = segments.create("a test", size)
    assert segment.memory.nbytes >= size
    assert not segment.memory.any()
    segment.memory[size - 1] = 7
    again = segments.attach("other", os.dup(segment.fd))
    assert again.memory.ctypes.data != segment.memory.ctypes.data
    assert again.memory[size - 1] == 7
    view = torch.from_numpy(again.memory[size - 1 :][:1])
    del again, segment
    assert segments.find("other") is not None
    assert segments.where(view.data_ptr()) == ("other", size - 1)
    address = view.data_ptr()
    del view
    assert segments.find("other") is None
    assert segments.where(address) is None
    assert num_fds() == fds


def test_large_segments_begin_at_a_huge_page() -> None:
    segment = segments.create("a test", 3 << 21)
    assert segment.memory.ctypes.data % (1 << 21) == 0


def test_a_segment_is_mapped_once_in_a_process() -> None:
    segment = segments.create("a test", 10)
    assert segments.attach(segment.id, os.dup(segment.fd)).memory is segment.memory


def test_too_large_a_segment_is_refused_before_it_is_made() -> None:
    with pytest.raises(CapacityError, match=r"the graph needs about 1048576\.00 GiB"):
        segments.create("the graph", 1 << 50)


TENSORS = {
    "float": torch.rand(100, 7),
    "bool": torch.rand(50) < 0.5,
    "half": torch.rand(5).half(),
    "bfloat16": torch.rand(5).bfloat16(),
    "complex": torch.rand(5, dtype=torch.complex64),
    "scalar": torch.tensor(3),
    "no rows": torch.empty(0, 16),
    "no columns": torch.empty(16, 0),
    "transposed": torch.rand(6, 4).t(),
    "every other": torch.arange(20)[::2],
    "expanded": torch.rand(4, 1).expand(4, 9),
    "conjugate": torch.rand(5, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str) -> None:
    tensor = TENSORS[name]
    out = through({"x": tensor})["x"]
    assert (out.dtype, out.shape, out.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(out, tensor)
    assert in_segment(out) or tensor.numel() == 0 or name == "conjugate"
    assert torch.equal(pickle.loads(pickle.dumps(out)), tensor)


def test_views_of_one_another_stay_so() -> None:
    whole, array = torch.arange(1000), np.arange(1000)
    parts = {"whole": whole, "part": whole[10:20], "square": whole.view(10, 100)}
    out, (of_numpy, of_torch) = through((parts, (array, torch.from_numpy(array))))
    out["part"][0] = of_numpy[3] = -1
    assert out["whole"][10] == out["square"][0, 10] == of_torch[3] == -1
    assert whole[10] == 10


def test_gradients_parameters_and_attributes_of_tensors() -> None:
    x = torch.rand(4, requires_grad=True)
    y = torch.rand(4)
    y.note = "kept"  # type: ignore[attr-defined]
    model = torch.nn.Linear(3, 2)
    out_x, out_y, out_model = through((x, y, model))
    assert out_x.requires_grad
    assert out_x.is_leaf
    assert out_y.note == "kept"
    assert isinstance(out_model.weight, torch.nn.Parameter)
    assert in_segment(out_model.weight)
    assert torch.equal(out_model.weight, model.weight)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:Sparse invariant checks are impl")
def test_sparse_tensors() -> None:
    dense = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
    for sparse in (dense.to_sparse_coo().coalesce(), dense.to_sparse_csr()):
        out = through(sparse)
        assert out.layout == sparse.layout
        assert torch.equal(out.to_dense(), dense)
        assert in_segment(out.values())


def test_subclasses_of_tensors() -> None:
    torch_geometric = pytest.importorskip("torch_geometric")
    edge_index = torch_geometric.EdgeIndex(torch.tensor([[0, 1, 2], [1, 2, 0]]), sparse_size=(3, 3))
    out = through(edge_index)
    assert type(out) is type(edge_index)
    assert out.sparse_size() == (3, 3)
    assert torch.equal(out.as_tensor(), edge_index.as_tensor())
    assert in_segment(out.as_tensor())


def test_meta_tensors_and_other_values() -> None:
    value = {"meta": torch.empty(3, 4, device="meta"), "names": ["a", "b"], "n": 3, "dtype": torch.int32}
    out = through(value)
    assert out.pop("meta").shape == value.pop("meta").shape
    assert out == value


ARRAYS = {
    "ints": np.arange(100),
    "fortran": np.asfortranarray(np.random.rand(5, 4)),
    "strided": np.arange(100).reshape(10, 10)[::2, ::3],
    "empty": np.empty((0, 4)),
    "scalar": np.array(3.0),
    "records": np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "strings": np.array(["a", "bcd"]),
    "objects": np.array([{"a": 1}, None], dtype=object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str) -> None:
    array = ARRAYS[name]
    out = through([array])[0]
    assert (out.dtype, out.shape) == (array.dtype, array.shape)
    assert np.array_equal(out, array)
    assert out.flags.writeable
    if name != "objects" and array.size:
        assert segments.where(out.ctypes.data) is not None


def test_what_lies_in_a_segment_is_not_copied_again() -> None:
    first = through({"x": torch.rand(1000), "y": torch.rand(1000)})
    packed = pack("a test", {"x": first["x"], "z": torch.rand(10)})
    assert len(packed.segments) == 2
    assert packed.segments[0].memory.nbytes < 4096 * 2
    out = unpack(packed)
    assert out["x"].data_ptr() == first["x"].data_ptr()
    assert identity(out["x"]) == identity(first["x"])
    id = packed.segments[1].id
    del packed, first
    assert segments.find(id) is not None  # the tensor holds on to it
    del out
    assert segments.find(id) is None


def test_the_private_copy_is_free_when_packed() -> None:
    gc.disable()
    try:
        x, array = torch.rand(1000), np.random.rand(1000)
        gone = [weakref.ref(x), weakref.ref(x.untyped_storage()), weakref.ref(array)]
        packed = pack("a test", {"x": x, "array": array})
        del x, array
        assert [ref() for ref in gone] == [None] * 3
        assert len(packed.segments) == 1
    finally:
        gc.enable()


def test_what_cannot_be_shared() -> None:
    with pytest.raises(InputError, match=r"the data: it cannot be passed to other processes: .*lambda"):
        pack("the data", {"f": lambda: 0})
    if torch.cuda.is_available():
        with pytest.raises(InputError, match="Expected tensors on the CPU"):
            pack("the data", torch.ones(2, device="cuda"))


class OnDevice(torch.UntypedStorage):
    """A storage that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:0")


def test_tensors_on_a_device_are_refused() -> None:
    with pytest.raises(InputError, match="Expected tensors on the CPU, got one on cuda:0"):
        sharing._Parts().add_storage(OnDevice(8))


# Mapped files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows of.npy"
    np.save(path, np.arange(100_000.0).reshape(1000, 100))
    return path


def file_behind(tensor: torch.Tensor | np.ndarray) -> str | None:
    address = tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data
    place = MappedFiles().find(address, tensor.nbytes)
    return None if place is None else place.path


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_mapped_arrays_stay_mapped(file: Path, mode: Any) -> None:
    whole = np.load(file, mmap_mode=mode)
    out_whole, out_part = through((whole, whole[500:]))
    assert file_behind(out_whole) == file_behind(out_part) == str(file)
    assert np.array_equal(out_whole, whole)
    assert np.array_equal(out_part, whole[500:])
    assert out_whole.flags.writeable == (mode != "r")
    if mode != "r":
        out_whole[3, 3] = -1
        assert (np.load(file)[3, 3] == -1) == (mode == "r+")


def test_mapped_tensors_stay_mapped(file: Path, tmp_path: Path) -> None:
    torch.save({"x": torch.arange(50_000)}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True)["x"]
    opened = torch.from_file(str(file), shared=True, size=100_000, dtype=torch.float32)
    for tensor, path in ((loaded, tmp_path / "x.pt"), (opened, file)):
        out = through(tensor)
        assert file_behind(out) == str(path)
        assert torch.equal(out, tensor)


def test_a_mapping_that_was_written_to_is_copied(file: Path) -> None:
    array = np.load(file, mmap_mode="c")
    array[999, 99] = -1
    out = through(array)
    assert file_behind(out) is None
    assert np.array_equal(out, array)
    assert out[999, 99] == -1


def test_a_mapping_of_a_file_that_is_gone_is_copied(file: Path) -> None:
    array = np.load(file, mmap_mode="r")
    file.unlink()
    out = through(array)
    assert segments.where(out.ctypes.data) is not None
    assert np.array_equal(out, array)


def test_a_file_that_has_changed_meanwhile_is_an_error(file: Path) -> None:
    packed = pack("a test", np.load(file, mmap_mode="r"))
    np.save(file, np.zeros(200_000))
    with pytest.raises(InputError, match=r"The file .*rows of\.npy has changed since another rank mapped it"):
        unpack(packed)


# Names of contents


def test_mapped_files_have_the_same_name_in_every_process(file: Path) -> None:
    mapped = torch.from_numpy(np.load(file, mmap_mode="r+"))
    first, second = through(mapped), through(mapped)
    assert first.data_ptr() != second.data_ptr()
    assert identity(mapped) is None
    assert None is not identity(first[10:]) == identity(second[10:]) != identity(first[20:-10])
    np.save(file, np.arange(100_000.0).reshape(1000, 100))
    assert identity(through(torch.from_numpy(np.load(file, mmap_mode="r+")))) != identity(first)
    del first, second
    assert not mapped_files._mapped


def test_identities() -> None:
    x = through(torch.arange(12).view(3, 4))
    names = {identity(t) for t in (x, x[0], x[1], x.t(), x.view(4, 3), x.view(torch.float64), x[:0])}
    assert len(names) == 7
    assert identity(x.detach()) == identity(x)
    assert identity(x.clone()) is None
    assert identity(x.to_sparse()) is None
    before = identity(x)
    x[0, 0] = 5
    assert identity(x) != before
    with torch.inference_mode():
        assert identity(x.view(2, 6)) is not None
