"""What is spread over GPUs is there once for all loaders. Ranks without GPUs: their memory is that of the host."""

import gc
import sys
from pathlib import Path

import torch
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.errors import InputError

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "distributed")]
ENV = {"TRITON_INTERPRET": "1"}
NUM_NODES = 500


def make_data():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NUM_NODES, (2, 4000), generator=generator)
    x = torch.randn(NUM_NODES, 12, generator=generator)
    return Data(x=x, y=torch.arange(NUM_NODES), edge_index=edge_index)


def loader(data, begin=0, end=NUM_NODES, **options):
    seeds = torch.arange(begin, end)
    options = {"distributed": True, "rank_timeout": 100.0, "seed": 1, "batch_size": 20} | options
    return manyhop_pyg.NeighborLoader(data, [4, 3], input_nodes=seeds, **options)


def right(batches, data):
    checks = []
    for batch in batches:
        checks += [torch.equal(batch.x, data.x[batch.n_id]), torch.equal(batch.y, data.y[batch.n_id])]
    return all(checks) and len(checks) > 0


def sharded_topology():
    import whole_graph_stand_in

    from manyhop.memory.placement import Hardware
    from manyhop.ranks import cuda

    binding = whole_graph_stand_in.install()
    small = lambda *_, together, **__: Hardware(  # noqa: E731
        gpu_memory=60_000, host_memory=1 << 40, gpus_per_node=2 if together else 1, peer_access=True, wholegraph=True,
        together=together,
    )  # fmt: skip
    cuda.hardware = small
    data = make_data()
    loaders = [loader(data, 0, 100, placement="sharded"), loader(data, 100, 200, placement="sharded")]
    loaders.append(loader(data, 100, 200, placement="sharded"))
    places = {each._gpu.memory.topology for each in loaders}
    made = binding.made
    batches = [right(each, data) for each in loaders]
    if manyhop.init().rank == 0:
        alone = loader(data, 100, 150, distributed=False, rank_timeout=None)
        places.add(alone._gpu.memory.topology)
        batches.append(right(alone, data))
    return places, made, all(batches), binding.made


def test_a_topology_is_sharded_once(launcher):
    for places, made, batches_right, at_last in launcher.run(sharded_topology, world_size=2, env=ENV):
        assert (places, made, batches_right, at_last) == ({"sharded"}, 3, True, 3)


def evaluate_alone():
    import whole_graph_stand_in

    binding = whole_graph_stand_in.install()
    data = make_data()
    world = manyhop.init()
    errors = []
    try:
        loader(data, placement="sharded", distributed=False, rank_timeout=None)
    except InputError as error:
        errors.append(str(error))
    train = loader(data, placement="sharded")
    found = []
    if world.rank == 0:  # the other ranks do nothing meanwhile
        for placement in ("sharded", None):
            alone = loader(data, 0, 100, placement=placement, distributed=False, rank_timeout=None)
            found += [right(alone, data), alone._gpu.memory.placement.place_of("x")]
        try:
            loader(data, placement="distributed", distributed=False, rank_timeout=None)
        except InputError as error:
            errors.append(str(error))
    return found, errors, binding.made, right(train, data)


def test_one_rank_evaluates_over_what_is_sharded(launcher):
    first, second = launcher.run(evaluate_alone, world_size=2, env=ENV)
    assert first[0] == [True, "sharded"] * 2
    for _, errors, made, train in (first, second):
        assert (made, train) == (2, True)
        assert "got 'x', which is not spread" in errors[0] or "got x, which is not spread" in errors[0]
    assert "for which all ranks exchange rows, got False" in first[1][1]


def drop_on_one_rank():
    import whole_graph_stand_in

    binding = whole_graph_stand_in.install()
    data, world = make_data(), manyhop.init()
    loaders = [loader(data, placement="sharded")]
    if world.rank == 0:
        loaders.clear()
        gc.collect()
    loaders.append(loader(data, placement="sharded"))  # rank 0 has nothing left: all make it anew
    made = [binding.made]
    data.x.add_(1)
    loaders.append(loader(data, placement="sharded"))  # x has changed, y has not
    made.append(binding.made)
    batches = right(loaders[-1], data)
    loaders.clear()
    gc.collect()
    last = loader(data, placement="sharded")  # frees what nobody uses any more
    return made, binding.made, batches and right(last, data), len(binding.live)


def test_what_not_all_ranks_have_is_made_anew(launcher):
    for made, at_last, batches, live in launcher.run(drop_on_one_rank, world_size=2, env=ENV):
        assert (made, at_last, batches) == ([4, 5], 7, True)
        assert live <= 4


def auto_where_a_rank_cannot_pin():
    import logging

    import whole_graph_stand_in

    from manyhop.errors import CapacityError
    from manyhop.loading.gpu.memory import HostMemory
    from manyhop.memory.placement import Hardware
    from manyhop.ranks import cuda

    binding, lines = whole_graph_stand_in.install(), []
    cuda.hardware = lambda *_, **__: Hardware(gpu_memory=78_600, host_memory=1 << 40, num_nodes=2, together=True)
    logging.getLogger("manyhop").warning = lambda text, *args: lines.append(text % args)
    rank = manyhop.init().rank

    def lock(memory, name):
        if rank == 1:
            raise CapacityError("Expected to pin more.")

    HostMemory._lock, HostMemory._unlock = lock, lambda *_: None
    data = make_data()
    train = loader(data)
    placement = train._gpu.memory.placement
    return rank, placement.topology.place, placement.place_of("x"), binding.made, right(train, data), lines


def test_auto_distributes_over_nodes_what_a_rank_cannot_pin(launcher):
    for rank, topology, x, made, batches_right, lines in launcher.run(
        auto_where_a_rank_cannot_pin, world_size=2, env=ENV
    ):
        assert (topology, x, made, batches_right) == ("device", "distributed", 1, True)
        expected = "What goes to the next best place: Rank 1: 'x' cannot be page-locked: Expected to pin more."
        assert lines == ([expected.replace("'x'", "x")] if rank == 0 else [])
