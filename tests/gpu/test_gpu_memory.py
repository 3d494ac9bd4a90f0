"""WholeMemory on one GPU: what there is of it without other ranks."""

import gc

import pytest
import torch
from test_gpu_ranks import fill_memory, load_files, sample_shared

import manyhop
from manyhop.errors import CapacityError, InputError
from manyhop.features import WholeMemory

pytestmark = [pytest.mark.gpu, pytest.mark.needs("pylibwholegraph")]


@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_views_and_gathers_show_what_was_copied(kind):
    assert fill_memory(kind)


def test_files_are_loaded(tmp_path, capsys):
    assert load_files(tmp_path, progress=True)
    assert "Reading 2 files: 100%" in capsys.readouterr().err


def test_a_shared_graph_is_sampled_as_on_the_cpu():
    assert sample_shared()


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
