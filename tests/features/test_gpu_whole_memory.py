"""WholeMemory with a stand-in for WholeGraph, whose memory is numpy's: one rank, no GPU."""

import gc

import numpy as np
import pytest
import torch
from whole_graph_stand_in import Binding

import manyhop
from manyhop.errors import FeatureError, InputError
from manyhop.features.whole_memory import communicators
from manyhop.features.whole_memory import memory as wholegraph
from manyhop.features.whole_memory.memory import WholeMemory, share_graph
from manyhop.graph import EdgeInput, build_graph

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip


class Recorder(Binding):
    """Notes its calls."""

    def __init__(self):
        super().__init__()
        self.freed, self.asked, self.calls = [], [], []

    def init(self, *_):
        self.calls.append("init")

    def malloc(self, nbytes, communicator, kind, location, row_bytes, partition):
        self.asked.append((nbytes, kind, location, row_bytes, partition.tolist()))
        return super().malloc(nbytes, communicator, kind, location, row_bytes, partition)

    def free(self, handle):
        self.freed.append(handle)
        super().free(handle)

    def destroy_communicator(self, handle):
        self.calls.append("destroy")

    def finalize(self):
        self.calls.append("finalize")


@pytest.fixture
def stand_in(monkeypatch):
    binding = Recorder()
    monkeypatch.setattr(communicators, "binding", lambda: binding)
    monkeypatch.setattr(wholegraph, "binding", lambda: binding)
    monkeypatch.setattr(communicators, "check_gpus", lambda *_, **__: None)
    monkeypatch.setattr(wholegraph, "require_room", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    yield binding
    manyhop.shutdown()
    communicators._communicators.clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_views_show_what_was_written(stand_in, kind, dtype):
    for shape in [(1000,), (37, 3), (5, 2, 5), (0, 4)]:
        source = (torch.rand(shape) * 100).to(dtype)
        memory = WholeMemory(shape, dtype, kind=kind)
        memory.copy_from(source)
        assert torch.equal(memory.local, source)
        assert memory.local.dtype == dtype
        if kind == "continuous":
            assert torch.equal(memory.whole, source)
            assert memory.whole is memory.whole
        memory.put(source.flip(0), 0)
        assert torch.equal(memory.local, source.flip(0))
        assert memory.local_rows == range(shape[0])
        memory.close()
        memory.close()
    assert len(stand_in.freed) == 4


@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_other_libraries_take_views_through_dlpack(stand_in, kind):
    source = torch.arange(40.0).view(10, 4)
    memory = WholeMemory((10, 4), torch.float32, kind=kind)
    memory.copy_from(source)
    seen = [memory.local]
    seen += [memory.whole] if kind == "continuous" else []
    for view in seen:
        taken = np.from_dlpack(view)
        assert taken.ctypes.data == view.data_ptr()
        assert np.array_equal(taken, source.numpy())


def test_wholegraph_is_asked_for_rows_that_it_does_not_cut(stand_in):
    WholeMemory((10, 3), torch.float16, kind="distributed").close()
    WholeMemory((0, 3), torch.float16).close()
    assert stand_in.asked == [(60, "MtDistributed", "MlDevice", 6, [10]), (6, "MtContinuous", "MlDevice", 6, [1])]


def test_files_are_read(stand_in, tmp_path):
    rows = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    np.save(tmp_path / "a.npy", rows[:123])
    np.save(tmp_path / "b.npy", rows[123:])
    memory = WholeMemory.from_files([tmp_path / "a.npy", tmp_path / "b.npy"])
    assert np.array_equal(memory.whole.numpy(), rows)
    with pytest.raises(FeatureError, match=r"the shape \[1000, 3\] and torch.float32 for 2 files, got \[123, 3\]"):
        memory.load(tmp_path / "a.npy")


def test_memory_that_nothing_uses_is_freed_when_another_is_made(stand_in):
    memory = WholeMemory((10,), torch.float32)
    part = memory.whole[3:5]
    part.zero_()
    del memory
    gc.collect()
    other = WholeMemory((10,), torch.float32)
    assert stand_in.freed == []  # a view of it is in use
    del part
    other = WholeMemory((10,), torch.float32)  # noqa: F841
    gc.collect()
    WholeMemory((10,), torch.float32)
    assert len(stand_in.freed) == 2


def test_the_end_of_the_run_frees_what_is_left(stand_in):
    kept = WholeMemory((10,), torch.float32)
    WholeMemory((10,), torch.float32, kind="distributed").close()
    manyhop.shutdown()
    assert len(stand_in.freed) == 2
    assert stand_in.calls == ["init", "destroy", "finalize"]
    kept.close()  # does nothing more
    assert len(stand_in.freed) == 2


def test_a_failing_run_is_left_to_the_system(stand_in, monkeypatch):
    WholeMemory((10,), torch.float32)
    monkeypatch.setattr("sys.last_exc", ValueError(), raising=False)
    manyhop.shutdown()
    assert stand_in.freed == []
    assert stand_in.calls == ["init"]


def test_what_does_not_fit_is_refused(stand_in, monkeypatch):
    memory = WholeMemory((10, 2), torch.float32, kind="distributed", name="x")
    with pytest.raises(InputError, match="which is distributed"):
        _ = memory.whole
    with pytest.raises(FeatureError, match="parts of x with its 10 rows, got rows"):
        memory.put(torch.zeros(9, 2), 0)
    with pytest.raises(FeatureError, match=r"for x, got \[10, 3\] and torch.float32"):
        memory.copy_from(torch.zeros(10, 3))
    (found,) = communicators._communicators.values()
    monkeypatch.setattr(found.handle, "support_type_location", lambda *_: False)
    with pytest.raises(InputError, match="Use kind='distributed'"):
        WholeMemory((10,), torch.float32)


def test_rows_of_a_distributed_tensor_are_a_source(stand_in):
    memory = WholeMemory((10, 2), torch.float32, kind="distributed")
    memory.copy_from(torch.arange(20.0).view(10, 2))
    rows = memory.rows()
    assert rows.shape == (10, 2)
    assert rows.is_whole
    assert torch.equal(rows.rows, memory.local)


def test_a_graph_is_in_one_piece_of_memory(stand_in):
    edges = EdgeInput(row=torch.tensor([2, 0, 1]), col=torch.tensor([0, 1, 0]), weight=torch.rand(3).double())
    graph = build_graph({"a": 3, "b": 2}, {("a", "to", "b"): edges}, node_time={"b": torch.tensor([5, 7])})
    spread, memory = share_graph(graph)
    assert [csc.tables().keys() for csc in spread.csc.values()] == [csc.tables().keys() for csc in graph.csc.values()]
    tables, own = ([*g.tables(), *g.node_time.values()] for g in (spread, graph))
    for table, expected in zip(tables, own, strict=True):
        assert (table.data_ptr() - memory.whole.data_ptr()) % 256 == 0
        assert torch.equal(table, expected)
        assert table.dtype == expected.dtype
    assert spread.num_nodes == graph.num_nodes
