"""How WholeMemory divides tensors, whether they fit, which GPUs ranks have, graphs in one piece: all without a GPU."""

import pytest
import torch

from manyhop.errors import CapacityError, FeatureError, InputError, MissingExtraError
from manyhop.features.whole_memory.communicators import binding, require_communicator, require_contexts, shortage
from manyhop.features.whole_memory.partition import Division
from manyhop.ranks import control

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 11])
@pytest.mark.parametrize("kind", ["continuous", "distributed"])
def test_every_row_has_one_place(kind, num_rows):
    division = Division((num_rows, 3), torch.int16, 4, kind)
    rows = [row for rank in range(4) for row in division.shards.rows_of(rank)]
    assert rows == list(range(num_rows))
    assert min(division.partition) >= 1
    assert sum(division.partition) >= num_rows
    assert all(len(division.shards.rows_of(r)) <= n for r, n in enumerate(division.partition))


def test_parts_begin_where_the_rows_do_unless_there_are_fewer_rows_than_ranks():
    assert Division((11, 2), torch.float32, 4, "continuous").partition == [2, 3, 3, 3]
    assert Division((3, 2), torch.float32, 4, "continuous").partition == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "nbytes", "expected"),
    [
        ("continuous", 5 * MIB, [0, 2 * MIB, 2 * MIB, 2 * MIB]),  # 3 pages for 4 ranks
        ("continuous", 16 * GIB, [4 * GIB] * 4),
        ("continuous", 16 * GIB + 1, [4 * GIB, 4 * GIB, 4 * GIB, 4 * GIB + 512 * MIB]),
        ("distributed", 5 * MIB, [2 * MIB] * 4),
        ("distributed", 16 * GIB, [4 * GIB] * 4),
        ("distributed", 16 * GIB + 4, [4 * GIB + 512 * MIB] * 4),
    ],
)
def test_whole_pages_are_predicted(kind, nbytes, expected):
    assert Division((nbytes,), torch.uint8, 4, kind).bytes_of_ranks() == expected


def test_impossible_tensors_are_refused():
    for shape in [(), (-1, 2), (4, 0)]:
        with pytest.raises(FeatureError, match="Expected"):
            Division(shape, torch.int8, 2, "distributed")
    with pytest.raises(InputError, match="continuous, distributed, got 'hierarchy'"):
        Division((4,), torch.int8, 2, "hierarchy")


def test_too_little_memory_on_one_gpu_is_named():
    division = Division((4 * GIB, 4), torch.float16, 4, "continuous")
    need = division.bytes_of_ranks()
    assert shortage(division, need, [9 * GIB] * 4, "x") is None
    reason = shortage(division, need, [9 * GIB, 9 * GIB, 8 * GIB, 9 * GIB], "x")
    assert reason.startswith("x (torch.float16 [4294967296, 4], 32.0 GiB, continuous over 4 ranks) needs 8.0 GiB")
    assert "on the GPU of rank 2, where 8.0 GiB are free" in reason
    assert "placement='pinned'" in reason


def test_a_gpu_without_room_for_cuda_is_named(monkeypatch):
    """Three ranks of a node and one of another; the GPU of the first has no room for the second."""
    touched, current = [], []

    def touch(gpu):
        touched.append(gpu)
        if gpu == 0 and full:
            raise RuntimeError("CUDA error: out of memory\nand more")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", touch)
    others = {"gpu": [0, None, 2, 3], "reason": ["", None, "", ""]}

    def exchange(title, facts, *, timeout):
        ((name, mine),) = facts.items()
        return [{name: mine if rank == 1 else theirs} for rank, theirs in enumerate(others[name])]

    monkeypatch.setattr(control, "exchange", exchange)
    full = True
    with pytest.raises(CapacityError, match=r"x: rank 1 cannot start CUDA on GPU 0 \(CUDA error: out of memory\)"):
        require_contexts([0, 1, 2], name="x", timeout=1)
    full = False
    require_contexts([0, 1, 2], name="x", timeout=1)
    others["reason"][3] = "on GPU 7"
    with pytest.raises(CapacityError, match="rank 3"):
        require_contexts([0, 1, 2], name="x", timeout=1)
    assert touched == [0, 1, 2] * 3
    assert current == [1] * 3


def test_a_gpu_without_room_for_a_communicator_is_named(monkeypatch):
    kept, free = 500 * MIB, 700 * MIB  # what torch keeps for later counts as well
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 0))

    def empty_cache():
        nonlocal kept, free
        kept, free = 0, free + kept

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    others = [2 * GIB, 3 * GIB]
    monkeypatch.setattr(control, "exchange", lambda _, facts, **__: [facts, *({"free": n} for n in others)])
    require_communicator("WholeMemory", timeout=1)
    assert free == 1200 * MIB
    others[1] = 600 * MIB
    with pytest.raises(CapacityError, match=r"needs 1.0 GiB .*, but 600.0 MiB are free on the GPU of rank 2\."):
        require_communicator("WholeMemory", timeout=1)


def test_the_extra_that_brings_wholegraph_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pylibwholegraph", None)
    with pytest.raises(MissingExtraError, match=r"pylibwholegraph-cu1[23].*\[cu1[23]\]"):
        binding()
