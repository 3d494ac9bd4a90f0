"""Gathering equals indexing, for every kind of source, on the CPU and by the GPU's kernels in triton's interpreter."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features import BufferPool, RowRequest, gather

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.uint16,
    torch.int32, torch.uint32, torch.int64, torch.uint64, torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
]  # fmt: skip


Gathered = Callable[..., list[Any]]


@pytest.fixture(params=["cpu", "gpu"])
def gathered(request: pytest.FixtureRequest) -> Gathered:
    """``gathered(*requests, threads=1)``."""
    if request.param == "cpu":
        return lambda *requests, threads=1: gather(requests, pool=BufferPool(), threads=threads)
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a GPU")
    from manyhop.features.gather_gpu import gather_on_gpu
    from manyhop.features.gathering import gather_on_cpu

    def on_gpu(*requests: Any, threads: int = 1) -> list[Any]:
        asked = [each if isinstance(each, RowRequest) else RowRequest(*each) for each in requests]
        return gather_on_gpu(asked, torch.device("cpu"), on_cpu=gather_on_cpu)

    return on_gpu


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random bits (for bool: random truth values); NaNs among them are compared as bits."""
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape)


def bits(x: Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(got: Tensor, expected: Tensor) -> None:
    assert (type(got), got.dtype, got.shape) == (type(expected), expected.dtype, expected.shape)
    assert bits(got) == bits(expected)


def rows_of(source: Tensor, index: Tensor) -> Tensor:
    """The definition: row after row, as bytes (torch's own indexing does not know all dtypes)."""
    as_bytes = source.contiguous().view(-1).view(torch.uint8).reshape(source.shape[0], -1)
    rows = torch.stack([as_bytes[i] for i in index.tolist()]) if index.numel() else as_bytes[:0]
    return rows.reshape(-1).view(source.dtype).reshape(index.numel(), *source.shape[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3), (50, 129), (50, 4, 5), (50, 2, 0), (1, 7)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_every_dtype_and_shape(
    gathered: Gathered, dtype: torch.dtype, shape: tuple[int, ...], index_dtype: torch.dtype
) -> None:
    source = random_tensor(shape, dtype)
    index = torch.randint(0, shape[0], (33,), dtype=index_dtype)
    (got,) = gathered((source, index))
    assert_same(got, rows_of(source, index) if source.numel() else torch.empty((33, *shape[1:]), dtype=dtype))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_row_length_and_alignment(gathered: Gathered, data: st.DataObject) -> None:
    n, width, pad = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 1200)), data.draw(st.integers(0, 20))
    offset = data.draw(st.integers(0, pad))
    source = random_tensor((n, width + pad), torch.uint8)[:, offset : offset + width]
    index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=torch.int64)
    threads = data.draw(st.sampled_from([1, 3]))
    assert torch.equal(gathered((source, index), threads=threads)[0], source[index])


@pytest.mark.parametrize("row_bytes", [64, 448, 512, 576, 1024, 1600, 4096, 4160, 513, 1025])
@pytest.mark.parametrize("threads", [1, 2])
def test_large_results_go_past_the_caches(row_bytes: int, threads: int) -> None:
    """From 4 MiB per thread on; only rows of whole cache lines do."""
    source = random_tensor((3000, row_bytes + 7), torch.uint8)[:, 7:]
    index = torch.randint(0, 3000, ((9 << 20) // row_bytes + 3,))
    (got,) = gather([(source, index)], pool=BufferPool(), threads=threads)
    assert torch.equal(got, source[index])


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "every other row": lambda x: x[::2],
    "some columns": lambda x: x[:, 3:9],
    "one column": lambda x: x[:, 4],
    "every other column": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "offset": lambda x: x[7:],
    "expanded": lambda x: x[:1].expand(40, -1),
    "one row": lambda x: x[3:4],
    "three dimensions permuted": lambda x: x.view(30, 4, 4).permute(0, 2, 1),
    "three dimensions": lambda x: x.view(30, 4, 4)[:, :, :1],
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "conjugate": lambda x: torch.complex(x, -x).conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "requires a gradient": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(gathered: Gathered, name: str) -> None:
    source = VIEWS[name](torch.randn(30, 16))
    index = torch.randint(0, source.shape[0], (100,))
    (got,) = gathered((source, index))
    assert torch.equal(got, source[index])
    assert got.requires_grad == source.requires_grad
    if not (source.is_conj() or source.is_neg()):
        assert got.is_contiguous()


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_index_tensors_of_any_stride(gathered: Gathered, index_dtype: torch.dtype) -> None:
    source = torch.randn(50, 3)
    index = torch.randint(0, 50, (40, 2), dtype=index_dtype)[:, 1]
    assert torch.equal(gathered((source, index))[0], source[index.long()])
    assert torch.equal(gathered((source, index[:1].expand(9)))[0], source[index[:1].long().expand(9)])


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (3, 5)])
def test_an_empty_index(shape: tuple[int, ...]) -> None:
    (got,) = gather([(torch.zeros(shape), torch.empty(0, dtype=torch.int64))])
    assert got.shape == (0, *shape[1:])


NUMPY: dict[str, Callable[[], np.ndarray]] = {
    "float32": lambda: np.random.rand(30, 5).astype(np.float32),
    "one dimension": lambda: np.arange(30),
    "uint16": lambda: np.arange(90, dtype=np.uint16).reshape(30, 3),
    "bool": lambda: np.random.rand(30, 3) < 0.5,
    "complex64": lambda: np.random.rand(30, 3).astype(np.complex64),
    "fortran order": lambda: np.asfortranarray(np.random.rand(30, 5)),
    "backwards": lambda: np.random.rand(30, 5)[::-1],
    "columns": lambda: np.random.rand(30, 5)[:, 1:3],
    "misaligned": lambda: np.frombuffer(bytes(range(1, 122)), dtype=np.uint8)[1:].view(np.float32).reshape(30, 1),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays(gathered: Gathered, name: str) -> None:
    source = NUMPY[name]()
    source.flags.writeable = False
    index = torch.randint(0, 30, (64,))
    (got,) = gathered((source, index))
    assert isinstance(got, Tensor)
    assert got.numpy().dtype == source.dtype
    assert got.numpy().tobytes() == source[index.numpy()].tobytes()


def test_memory_maps_are_read_only_where_asked(tmp_path: Path) -> None:
    data = np.random.rand(1000, 37).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    source = np.load(tmp_path / "x.npy", mmap_mode="r")
    index = torch.randint(0, 1000, (500,))
    (got,) = gather([(source, index)], pool=BufferPool(), threads=2)
    assert np.array_equal(got.numpy(), data[index.numpy()])
    got.zero_()
    assert np.array_equal(source, data)


def test_other_dimensions(gathered: Gathered) -> None:
    x, index = torch.randn(4, 30, 3), torch.randint(0, 30, (7,))
    expected = x[:, index]
    for source, dim in ((x, 1), (x, -2), (x.numpy(), 1), (x.numpy(), -2)):
        assert torch.equal(gathered(RowRequest(source, index, dim))[0], expected)
    assert torch.equal(gathered(RowRequest(x, index.int() % 3, -1))[0], x[:, :, index % 3])


def test_sparse_tensors(gathered: Gathered) -> None:
    dense = torch.randn(20, 6) * (torch.rand(20, 6) < 0.3)
    index = torch.randint(0, 20, (9,))
    for index_dtype in (torch.int64, torch.int32):
        plain, got = gathered((dense, index), (dense.to_sparse(), index.to(index_dtype)))
        assert got.layout is torch.sparse_coo
        assert torch.equal(got.to_dense(), plain)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_sparse_layouts_that_torch_cannot_index() -> None:
    with pytest.raises(FeatureError, match=r"got a torch\.sparse_csr tensor. Convert it"):
        gather([(torch.eye(3).to_sparse_csr(), torch.tensor([1]))])


def test_objects_that_index_themselves() -> None:
    class Frame:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: Tensor) -> list[int]:
            return [10 * i for i in index.tolist()]

    index = torch.tensor([4, 0, 4])
    assert gather([(Frame(), index)]) == [[40, 0, 40]]
    with pytest.raises(FeatureError, match=r"\[0, 5\) for the features, got 5 \(at position 1\)"):
        gather([(Frame(), torch.tensor([0, 5]))])
    with pytest.raises(FeatureError, match="reading rows along dimension 1, got a Frame"):
        gather([RowRequest(Frame(), index, 1)])


def test_subclasses_keep_their_type() -> None:
    class Marked(Tensor):
        pass

    source = torch.randn(5, 2).as_subclass(Marked)
    got = gather([(source, torch.tensor([1, 1]))])[0]
    assert type(got) is Marked
    assert torch.equal(got.as_subclass(Tensor), source.as_subclass(Tensor)[[1, 1]])


def test_other_devices_use_their_own_indexing() -> None:
    got = gather([(torch.empty(5, 2, device="meta"), torch.tensor([1, 1, 2]))])[0]
    assert (got.device.type, got.shape) == ("meta", (3, 2))


def test_many_requests_keep_their_order() -> None:
    sources = [torch.randn(30, k) for k in range(6)] + [torch.randn(30, 2).t(), torch.randn(30)]
    requests = [RowRequest(s, torch.randint(0, s.shape[0], (11 + k,))) for k, s in enumerate(sources)]
    for threads in (1, 2, 4):
        for got, r in zip(gather(requests, pool=BufferPool(), threads=threads), requests, strict=True):
            assert torch.equal(got, r.source[r.index])
    assert gather([]) == []


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_share_the_rows(threads: int) -> None:
    source, index = torch.randn(5000, 100), torch.randint(0, 5000, (20_011,))
    assert torch.equal(gather([(source, index)], pool=BufferPool(), threads=threads)[0], source[index])


def test_gathers_from_several_threads_at_once() -> None:
    source, pool = torch.randn(5000, 64), BufferPool()
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for threads in (1, 2) * 10:
            index = torch.randint(0, 5000, (6000,), generator=generator)
            (got,) = gather([(source, index)], pool=pool, threads=threads)
            if not torch.equal(got, source[index]):
                wrong.append(seed)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gathers_with_threads_of_its_own() -> None:
    source, index = torch.randn(5000, 64), torch.randint(0, 5000, (6000,))
    expected = gather([(source, index)], threads=2)[0].numpy()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.array_equal(gather([(source, index)], threads=2)[0].numpy(), expected) else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, -(2**31), 2**62, -(2**63)])
@pytest.mark.parametrize("width", [0, 1, 2, 4, 100])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_an_index_out_of_range_is_named(gathered: Gathered, bad: int, width: int, dtype: torch.dtype) -> None:
    if dtype is torch.int32 and abs(bad) > 2**31:
        return
    index = torch.randint(0, 100, (100,), dtype=dtype)
    index[77] = bad
    message = rf"Expected indices in \[0, 100\) for feature x, got {bad} \(at position 77\)"
    for source in (torch.zeros(100, width), torch.zeros(100, width, 2)[:, :, 0]):
        with pytest.raises(FeatureError, match=message):
            gathered((torch.zeros(100, 3), index[:50]), RowRequest(source, index, name="feature x"))


def test_the_first_wrong_index_is_named_with_threads_too() -> None:
    source, index = torch.zeros(100, 100), torch.zeros(40_000, dtype=torch.int64)
    index[10_000:] = 100
    with pytest.raises(FeatureError, match="at position 10000"):
        gather([(source, index)], threads=4)


@pytest.mark.parametrize(
    ("source", "index", "message"),
    [
        (torch.zeros(0, 3), torch.tensor([0]), r"\[0, 0\)"),
        (torch.zeros(5), torch.tensor([0.0]), "got .* torch.float32"),
        (torch.zeros(5), torch.tensor([True]), "got .* torch.bool"),
        (torch.zeros(5), torch.tensor([[1]]), r"got \[1, 1\]"),
        (torch.zeros(5), [1], "got a list"),
        (torch.zeros(5), None, "got a NoneType"),
        (torch.tensor(5.0), torch.tensor([0]), "rows along dimension 0"),
        (np.array(5.0), torch.tensor([0]), "rows along dimension 0"),
        (7, torch.tensor([0]), "rows along dimension 0, got a int"),
        (np.array(["a", "b"]), torch.tensor([0]), "a dtype that torch has"),
        (np.array([{}, {}], dtype=object), torch.tensor([0]), "a dtype that torch has"),
        (np.arange(5, dtype=">i4"), torch.tensor([0]), "a dtype that torch has"),
    ],
)
def test_what_cannot_be_gathered(source: Any, index: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        gather([(source, index)])


def test_threads_are_checked() -> None:
    with pytest.raises(InputError, match="at least 1 thread"):
        gather([], threads=0)


def test_results_are_recycled_and_independent_of_the_source() -> None:
    pool, source, index = BufferPool(), torch.randn(1000, 128), torch.arange(1000)
    (first,) = gather([(source, index)], pool=pool)
    address = first.data_ptr()
    first += 1
    assert torch.equal(first, source + 1)
    (second,) = gather([(source, index)], pool=pool)
    assert second.data_ptr() != address
    del first
    assert gather([(source, index)], pool=pool)[0].data_ptr() == address
