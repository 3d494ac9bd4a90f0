"""Memory over several GPUs, and exchanges between them: a rank for each."""

import faulthandler
import re
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import manyhop
from manyhop.errors import CapacityError, FeatureError, RankError
from manyhop.features import DistributedRows, GPUExchange, RowRequest, Shards, WholeMemory, gather, share_graph
from manyhop.features.whole_memory.communicators import communicator
from manyhop.graph import EdgeInput, build_graph
from manyhop.ranks import control
from manyhop.sampling import BatchKey, CPUSampler, GPUSampler, NeighborSpec, NodeRequest

pytestmark = [pytest.mark.multigpu, pytest.mark.needs("pylibwholegraph")]

GPUS = torch.cuda.device_count()
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip
KINDS = ["continuous", "distributed"]


def see_gpus():
    world = manyhop.init()
    started = torch.cuda.is_initialized()
    on_host, on_gpu = torch.ones(1), None
    dist.all_reduce(on_host)
    still = torch.cuda.is_initialized()
    on_gpu = torch.ones(1, device="cuda")
    dist.all_reduce(on_gpu)
    return started, still, on_host.item(), on_gpu.item(), torch.cuda.current_device() == world.local_rank


def test_init_makes_a_group_for_both_and_starts_nothing(run_on_all_gpus):
    size = float(GPUS)
    assert run_on_all_gpus(see_gpus) == [(False, False, size, size, True)] * GPUS


def fill_memories():
    return {kind: fill_memory(kind) for kind in KINDS}


def fill_memory(kind):
    world = manyhop.init()
    right = []
    for dtype in DTYPES:
        for shape in [(1001,), (37, 3), (1, 2, 5), *[(0, 4)] * world.is_alone]:
            generator = torch.Generator().manual_seed(1)
            source, n = (torch.rand(shape, generator=generator) * 100).to(dtype), shape[0]
            memory = WholeMemory(shape, dtype, kind=kind)
            memory.copy_from(source)
            shards = Shards(n, world.world_size)
            mine = shards.rows_of(world.rank)
            right.append(memory.local.is_cuda and torch.equal(memory.local.cpu(), source[mine.start : mine.stop]))
            if kind == "continuous":
                right.append(memory.whole.is_cuda and torch.equal(memory.whole.cpu(), source))
            if kind == "continuous" and n > 0:
                ids = torch.randint(0, n, (300,), device="cuda")
                right.append(torch.equal(gather([(memory.whole, ids)])[0].cpu(), source[ids.cpu()]))
            other = source.flip(0)  # in parts that are not those of the memory, the last rank's first
            begin, end = {0: (n * 2 // 3, n), 1: (0, n * 2 // 3)}.get(world.rank, (0, 0))
            if world.is_alone:
                begin = 0
            memory.put(other[begin:end], begin)
            right.append(torch.equal(memory.local.cpu(), other[mine.start : mine.stop]))
            memory.close()
    return all(right)


def test_every_rank_holds_its_rows_and_sees_those_of_others(run_on_all_gpus):
    for right in run_on_all_gpus(fill_memories):
        assert [which for which, ok in right.items() if not ok] == []


def load_files(folder, progress=False):
    rows = np.random.default_rng(0).random((5000, 3), dtype=np.float32)
    if manyhop.init().rank == 0:
        np.save(f"{folder}/a.npy", rows[:1234])
        np.save(f"{folder}/b.npy", rows[1234:])
    control.exchange("files", {}, timeout=100.0)
    memory = WholeMemory.from_files([f"{folder}/a.npy", f"{folder}/b.npy"], progress=progress)
    return np.array_equal(memory.whole.cpu().numpy(), rows)


def test_ranks_load_files_together(run_on_all_gpus, tmp_path):
    assert run_on_all_gpus(load_files, str(tmp_path)) == [True] * GPUS


def ask_for_too_much():
    world = manyhop.init()
    WholeMemory((10,), torch.uint8)  # what CUDA and NCCL take of the GPUs, they have
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(free - (1 << 30), dtype=torch.uint8, device="cuda") if world.rank == 1 else None
    with pytest.raises(CapacityError) as full:
        WholeMemory((world.world_size << 31,), torch.uint8, name="the features")
    del held
    with pytest.raises(RankError) as different:
        WholeMemory((10 + world.rank,), torch.uint8, name="y")
    return str(full.value), str(different.value)


@pytest.mark.whole_gpu
def test_all_ranks_get_the_error_of_a_gpu_that_is_full(run_on_all_gpus):
    for full, different in run_on_all_gpus(ask_for_too_much):
        assert f"the features (torch.uint8 [{GPUS << 31}], {2 * GPUS}.0 GiB" in full
        assert "on the GPU of rank 1" in full
        assert "same shape on all ranks" in different


def come_to_a_full_gpu():
    world = manyhop.init()
    communicator("node", timeout=60)
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(free - (200 << 20), dtype=torch.uint8, device="cuda") if world.rank == 1 else None
    dist.all_reduce(torch.ones(1))
    with pytest.raises(CapacityError) as raised:
        WholeMemory((10,), torch.uint8, name="y")
    dist.all_reduce(torch.ones(1))
    del held
    memory = WholeMemory((10,), torch.uint8, name="y")
    memory.copy_from(torch.arange(10).byte())
    return str(raised.value), memory.whole.tolist()


@pytest.mark.whole_gpu
def test_a_gpu_without_room_for_other_ranks_is_named(run_on_all_gpus):
    for full, values in run_on_all_gpus(come_to_a_full_gpu):
        assert re.search(r"y: rank [02-9] cannot start CUDA on GPU 1", full)
        assert values == list(range(10))


def shard(whole, world):
    rows = Shards(len(whole), world.world_size).rows_of(world.rank)
    return DistributedRows(whole[rows.start : rows.stop].cuda(), len(whole), world)


def exchange_rows():
    world = manyhop.init()
    exchange = GPUExchange("a test")
    right = []
    for number, (num_rows, count) in enumerate([(60, 700), (60, 700), (3, 100), (100_000, 200_000), (5000, 0)]):
        bits = torch.randint(0, 2**15, (num_rows, 128), generator=torch.Generator().manual_seed(3))
        wholes = [bits.int(), bits[:, :3].short(), bits[:, 0] > 2**14, bits[:, :4].reshape(-1, 2, 2).double()]
        ids, few = torch.randint(0, num_rows, (count * (world.rank + 1),)), torch.tensor([0, num_rows - 1, 0])
        there, few_there = ids.cuda(), few.int().cuda()
        requests = [RowRequest(shard(whole, world), there) for whole in wholes]
        got = exchange.gather([*requests, RowRequest(shard(wholes[0], world), few_there)], (0, number))
        right += [torch.equal(a.cpu(), whole[ids]) for a, whole in zip(got, wholes, strict=False)]
        right.append(torch.equal(got[-1].cpu(), wholes[0][few]))
    memory = WholeMemory((1000, 128), torch.int32, kind="distributed")
    memory.copy_from(bits[:1000].int())
    ids = torch.randint(0, 1000, (5000,))
    pinned = exchange.gather([RowRequest(memory.rows(), ids.cuda())], (1, 0))
    exchange.close()
    return all(right) and torch.equal(pinned[0].cpu(), bits[ids].int())


def test_rows_come_over_nccl(run_on_all_gpus):
    assert run_on_all_gpus(exchange_rows) == [True] * GPUS


def load_distributed():
    from torch_geometric.data import Data

    from manyhop_pyg import NeighborLoader

    world = manyhop.init()
    edges = torch.randint(0, 5000, (2, 2_000_000), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.arange(5000.0)[:, None].repeat(1, 8), y=torch.arange(5000), edge_index=edges)
    options = {"batch_size": 100, "seed": 1, "distributed": True, "device": f"cuda:{world.local_rank}"}
    loader = NeighborLoader(data, [5, 5], placement="distributed", **options)
    right = [torch.equal(b.x[:, 0].long(), b.n_id) and torch.equal(b.y, b.n_id) for b in loader]
    named = sorted(name for name in sys.modules if "cpu_kernels" in name or name.endswith("numba_kernels"))
    return all(right), named, loader.node_sampler.topology.graph.is_made


def test_a_loader_whose_ranks_exchange_rows_loads_no_kernel_for_cpus(run_on_all_gpus):
    assert run_on_all_gpus(load_distributed) == [(True, [], False)] * GPUS


def go_wrong():
    world = manyhop.init()
    exchange = GPUExchange("a test")
    rows, found = shard(torch.zeros(10, 1), world), []
    try:
        ids = torch.tensor([0, 9, 10 if world.rank == 1 else 3], device="cuda")
        exchange.gather([RowRequest(rows, ids, name="x")], (0, 0))
    except (FeatureError, RankError) as error:
        found.append(str(error))
    exchange.begin()
    if world.rank == 0:
        exchange.end((1, 0))
    else:
        try:
            exchange.gather([RowRequest(rows, ids[:2])], (1, 0))
        except RankError as error:
            found.append(str(error))
    exchange.begin()
    found.append(exchange.gather([RowRequest(rows, ids[:2])], (2, 0))[0].numel())
    return found


def test_ranks_get_each_others_errors_and_go_on(run_on_all_gpus):
    found = run_on_all_gpus(go_wrong)
    for rank, (message, *_, count) in enumerate(found):
        assert ("got 10 (at position 2)" if rank == 1 else "rank 1 failed: FeatureError") in message
        assert count == 2
    for _, left, _ in found[1:]:
        assert "rank 0 left the loop" in left


def come_late():
    """Rank 1 comes only when the others have raised, and could use their GPUs again."""
    faulthandler.dump_traceback_later(50.0)
    world = manyhop.init()
    exchange = GPUExchange("a test", timeout=60.0)  # for all to make it
    exchange._flight._timeout = 2.0
    rows, ids = shard(torch.zeros(10, 1), world), torch.tensor([0, 9], device="cuda")
    control.exchange("ready", {}, timeout=100.0)  # the others begin to wait within two seconds of each other
    if world.rank == 1:
        while control.store().add("free", 0) < world.world_size - 1:
            time.sleep(0.05)
        return "", 0, 0
    begin, message = time.monotonic(), ""
    try:
        exchange.gather([RowRequest(rows, ids)], (0, 0))
    except RankError as error:
        message = str(error)
    seconds = time.monotonic() - begin
    free = torch.ones(3, device="cuda").sum().item()  # nothing waits on the GPU any more
    control.store().add("free", 1)
    return message, seconds, free


def test_a_late_rank_is_named_and_the_gpu_is_free_again(run_on_all_gpus):
    found = run_on_all_gpus(come_late, timeout=70.0)
    print([round(seconds, 1) for _, seconds, _ in found])
    for message, seconds, free in found[:1] + found[2:]:
        assert "exchange 0 of epoch 0: rank 1 did not come" in message
        assert seconds < 60
        assert free == 3


def sample_shared():
    num_nodes = 20_000
    row, col = torch.randint(0, num_nodes, (2, 300_000), generator=torch.Generator().manual_seed(0))
    graph = build_graph({"_N": num_nodes}, {("_N", "_E", "_N"): EdgeInput(row=row, col=col)})
    shared, _ = share_graph(graph)
    spec = NeighborSpec(fanouts={edge_type: (10, 5) for edge_type in graph.edge_types})
    request = NodeRequest(key=BatchKey(1, 2, manyhop.init().rank), seeds={"_N": torch.arange(500)})
    there = GPUSampler(shared, spec, device=torch.device("cuda", torch.cuda.current_device())).sample(request)
    here = CPUSampler(graph, spec).sample(request)
    edge_type = graph.edge_types[0]
    nodes = torch.equal(there.node["_N"].cpu(), here.node["_N"])
    return nodes and torch.equal(there.edge_id[edge_type].cpu(), here.edge_id[edge_type])


def test_a_graph_over_all_gpus_is_sampled_as_on_the_cpu(run_on_all_gpus):
    assert run_on_all_gpus(sample_shared) == [True] * GPUS
