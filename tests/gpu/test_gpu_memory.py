"""WholeMemory on one GPU: what there is of it without other ranks."""

import gc

import numpy as np
import pytest
import torch

import manyhop
from manyhop.errors import CapacityError, InputError
from manyhop.features import WholeMemory, gather, share_graph
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUSampler, GPUSampler, NeighborSpec, NodeRequest

pytestmark = [pytest.mark.gpu, pytest.mark.needs("pylibwholegraph")]

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_views_show_what_was_copied(kind, dtype):
    for shape in [(1000,), (37, 3), (50, 2, 5), (0, 4)]:
        source = (torch.rand(shape) * 100).to(dtype)
        memory = WholeMemory(shape, dtype, kind=kind)
        memory.copy_from(source)
        views = [memory.local]
        if kind == "continuous":
            views.append(memory.whole)
        assert all(torch.equal(view.cpu(), source) for view in views)
        assert all(view.is_cuda for view in views)
        memory.put(source.flip(0), 0)
        assert torch.equal(memory.local.cpu(), source.flip(0))
        memory.close()


def test_files_are_loaded(tmp_path, capsys):
    rows = np.random.default_rng(0).random((5000, 3), dtype=np.float32)
    np.save(tmp_path / "a.npy", rows[:1234])
    np.save(tmp_path / "b.npy", rows[1234:])
    memory = WholeMemory.from_files([tmp_path / "a.npy", tmp_path / "b.npy"], progress=True)
    assert np.array_equal(memory.local.cpu().numpy(), rows)
    assert "Reading 2 files: 100%" in capsys.readouterr().err
    memory.close()


def test_gather_reads_the_memory():
    source = torch.arange(3000.0).view(1000, 3)
    memory = WholeMemory((1000, 3), torch.float32)
    memory.copy_from(source)
    ids = torch.randint(0, 1000, (5000,), device="cuda")
    assert torch.equal(gather([(memory.whole, ids)])[0].cpu(), source[ids.cpu()])
    memory.close()


@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_views_are_taken_through_dlpack(kind):
    source = torch.arange(40.0).view(10, 4)
    memory = WholeMemory((10, 4), torch.float32, kind=kind)
    memory.copy_from(source)
    views = [memory.local]
    views += [memory.whole] if kind == "continuous" else []
    for view in views:
        taken = torch.from_dlpack(view.__dlpack__())
        assert taken.data_ptr() == view.data_ptr()
        assert torch.equal(taken.cpu(), source)
    del view, views, taken
    memory.close()


def test_other_libraries_take_views_through_dlpack():
    cupy = pytest.importorskip("cupy")
    memory = WholeMemory((10, 4), torch.float32)
    memory.copy_from(torch.arange(40.0).view(10, 4))
    assert float(cupy.from_dlpack(memory.whole).sum()) == 780
    memory.close()


@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_too_little_memory_raises_before(kind):
    with pytest.raises(CapacityError, match=r"x \(torch.uint8 \[1099511627776\], 1.0 TiB.* are free"):
        WholeMemory((1 << 40,), torch.uint8, kind=kind, name="x")


@pytest.mark.whole_gpu
@pytest.mark.parametrize("num_bytes", [100_000_000, 17_500_000_000])
@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_memory_is_predicted_to_the_byte(kind, num_bytes):
    WholeMemory((1,), torch.uint8).close()  # what WholeGraph itself needs is there from now on
    before = torch.cuda.mem_get_info()[0]
    if before < 2 * num_bytes:
        pytest.skip("needs a larger GPU")
    memory = WholeMemory((num_bytes,), torch.uint8, kind=kind)
    assert before - torch.cuda.mem_get_info()[0] == memory.division.bytes_of_ranks()[0]
    memory.close()
    assert torch.cuda.mem_get_info()[0] == before


@pytest.mark.whole_gpu
def test_memory_that_nothing_uses_is_freed_when_another_is_made():
    WholeMemory((1,), torch.uint8).close()
    before = torch.cuda.mem_get_info()[0]
    memory = WholeMemory((1 << 28,), torch.uint8)
    view = memory.whole[5:]
    del memory
    gc.collect()
    WholeMemory((1,), torch.uint8).close()
    assert before - torch.cuda.mem_get_info()[0] == 1 << 28
    del view
    gc.collect()
    WholeMemory((1,), torch.uint8).close()
    assert torch.cuda.mem_get_info()[0] == before


def test_a_view_that_there_is_not_is_refused():
    distributed = WholeMemory((10,), torch.float32, kind="distributed")
    with pytest.raises(InputError, match="which is distributed"):
        _ = distributed.whole
    distributed.close()


def test_memory_that_is_left_open_is_freed_in_the_end():
    WholeMemory((10,), torch.float32)
    manyhop.shutdown()
    again = WholeMemory((10,), torch.float32)
    again.copy_from(torch.ones(10))
    assert float(again.whole.sum()) == 10
    manyhop.shutdown()


def test_a_shared_graph_is_sampled_as_on_the_cpu():
    num_nodes, generator = 20_000, torch.Generator().manual_seed(0)
    row, col = torch.randint(0, num_nodes, (2, 300_000), generator=generator)
    graph = build_graph({"_N": num_nodes}, {("_N", "_E", "_N"): EdgeInput(row=row, col=col)})
    shared, memory = share_graph(graph)
    spec = NeighborSpec(fanouts={edge_type: (10, 5) for edge_type in graph.edge_types})
    request = NodeRequest(key=BatchKey(1, 2, 3), seeds={"_N": torch.arange(500)})
    there = GPUSampler(shared, spec, device="cuda").sample(request)
    here = CPUSampler(graph, spec).sample(request)
    assert torch.equal(there.node["_N"].cpu(), here.node["_N"])
    edge_type = graph.edge_types[0]
    assert torch.equal(there.edge_id[edge_type].cpu(), here.edge_id[edge_type])
    memory.close()
