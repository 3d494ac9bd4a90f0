"""Which memory for what GPUs read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhop.errors import CapacityError, InputError, MissingExtraError
from manyhop.memory.placement import GPU_RESERVE, RESERVE, Hardware, Item, decide_gpu
from manyhop.memory.places import ALIASES

GB = 10**9
TOPOLOGY = Item(name="topology", nbytes=10 * GB, can_map=True, can_shard=True)
X = Item(name="x", nbytes=100 * GB, can_map=True)
Y = Item(name="y", nbytes=20 * GB, can_map=True)
LABELS = Item(name="labels", nbytes=GB, can_map=True, can_shard=False)
MODES = ["auto", "cuda-cuda", "pinned-cuda", "cpu-cuda", "sharded", "distributed"]


def hardware(gpu, host=1000, **more):
    """Gigabytes that are usable on each GPU, and in each node; all GPUs are peers."""
    more = {"peer_access": True, "wholegraph": True, "together": True, **more}
    return Hardware(
        gpu_memory=int(gpu * GB / (1 - GPU_RESERVE)) + 2, host_memory=int(host * GB / (1 - RESERVE)) + 2, **more
    )


def places(features, hardware, mode="auto", topology=TOPOLOGY):
    placement = decide_gpu(topology, features, hardware, mode=mode)
    return [placement.topology.place, *(c.place for c in placement.features)]


def test_step_by_step_down():
    """One node of four peers with ever less memory: the largest leave first, the topology last."""
    four = {"gpus_per_node": 4}
    assert places([X, Y], hardware(130, **four)) == ["device", "device", "device"]
    assert places([X, Y], hardware(129, **four)) == ["device", "sharded", "device"]
    assert places([X, Y], hardware(54, **four)) == ["device", "sharded", "sharded"]
    assert places([X, Y], hardware(39, **four)) == ["sharded", "sharded", "sharded"]
    assert places([X, Y], hardware(32, **four)) == ["device", "pinned", "device"]
    assert places([X, Y], hardware(16, **four)) == ["device", "pinned", "sharded"]
    assert places([X, Y], hardware(2.6, **four)) == ["sharded", "pinned", "pinned"]
    assert places([X, Y], hardware(2, **four)) == ["pinned", "pinned", "pinned"]
    assert places([X, Y], hardware(32, 99, **four)) == ["device", "host", "device"]
    assert places([X, Y], hardware(0.1, 1, **four)) == ["host", "host", "host"]


def test_a_topology_that_no_node_holds():
    """The next best place is all GPUs, where cuGraph samples; then the CPU."""
    big = replace(TOPOLOGY, nbytes=300 * GB, can_distribute=True, distributed_bytes=640 * GB, pointer_bytes=GB)
    nodes = {"gpus_per_node": 4, "num_nodes": 4, "cugraph": True}
    assert places([], hardware(50, 200, **nodes), topology=big) == ["distributed"]
    assert places([], hardware(50, 400, **nodes), topology=big) == ["pinned"]
    assert places([], hardware(80, 200, **nodes), topology=big) == ["sharded"]
    assert places([], hardware(39, 200, **nodes), topology=big) == ["host"]
    for more in ({"cugraph": False}, {"together": False}):
        assert places([], hardware(50, 200, **{**nodes, **more}), topology=big) == ["host"]
    assert places([], hardware(50, 200, **nodes), topology=replace(big, can_distribute=False)) == ["host"]
    reason = decide_gpu(big, [], hardware(50, 200, **{**nodes, "together": False})).topology.reason
    assert "distributed=True" in reason
    held = replace(big, store_place="distributed", nbytes=GB)
    assert places([Y], hardware(90, **nodes), topology=held) == ["distributed", "device"]


def test_without_peers_or_wholegraph_or_the_other_ranks():
    for more in ({"peer_access": False}, {"wholegraph": False}, {"together": False}, {"gpus_per_node": 1}):
        assert places([X, Y], hardware(99, **{"gpus_per_node": 4, **more})) == ["device", "pinned", "device"]
    # Rows that are sent take the place of rows that peers would read, where the node's memory is too small.
    assert places([X, Y], hardware(99, 50, gpus_per_node=4, peer_access=False)) == ["device", "distributed", "device"]
    assert places([X, Y], hardware(99, 50, gpus_per_node=4, together=False)) == ["device", "host", "device"]


def test_several_nodes():
    two = {"gpus_per_node": 4, "num_nodes": 2}
    assert places([X, Y], hardware(55, **two)) == ["device", "sharded", "device"]
    assert places([X, Y], hardware(32, 200, **two)) == ["device", "pinned", "device"]
    assert places([X, Y], hardware(24, 99, **two)) == ["sharded", "distributed", "sharded"]
    assert places([X, Y], hardware(24, 99, **two, together=False)) == ["device", "host", "pinned"]


def test_each_rank_that_pins_a_mapped_file_has_a_copy():
    topology = Item(name="topology", nbytes=50 * GB, can_map=True, can_shard=False, distributed_bytes=200 * GB)
    for ranks, memory, place in ((1, 70, "pinned"), (4, 70, "host"), (4, 190, "host"), (4, 210, "pinned")):
        by_each = replace(topology, pinned_by_each=True)
        assert places([], hardware(20, memory, gpus_per_node=ranks), topology=by_each) == [place]
        assert places([], hardware(20, memory, gpus_per_node=ranks), topology=topology) == ["pinned"]
    plan = decide_gpu(replace(topology, pinned_by_each=True), [], hardware(20, 210, gpus_per_node=4))
    assert (plan.host_bytes, plan.pinned_bytes) == (200 * GB, 50 * GB)


def test_column_pointers_are_on_the_gpu_even_where_the_topology_is_pinned():
    topology = replace(TOPOLOGY, pointer_bytes=2 * GB)
    plan = decide_gpu(topology, [X], hardware(3))
    assert (plan.topology.place, plan.gpu_bytes, plan.pinned_bytes) == ("pinned", 3 * GB, 108 * GB)
    assert places([X], hardware(1), topology=topology) == ["host", "pinned"]
    assert places([X], hardware(3), "pinned-cuda", topology) == ["pinned", "pinned"]
    with pytest.raises(CapacityError, match=r"1.9 GiB on each GPU, where 953.7 MiB are usable"):
        decide_gpu(topology, [X], hardware(1), mode="pinned-cuda")


def test_limits_of_page_locked_memory():
    assert places([X, Y], hardware(32, pinnable=100 * GB)) == ["device", "pinned", "device"]
    assert places([X, Y], hardware(32, pinnable=99 * GB)) == ["device", "host", "device"]
    # What lies in memory already is pinned there: it needs no further memory.
    here = Item(name="x", nbytes=100 * GB, can_map=False, in_memory=True)
    plan = decide_gpu(TOPOLOGY, [here], hardware(32, 1))
    assert (plan.place_of("x"), plan.host_bytes, plan.pinned_bytes) == ("pinned", 0, 100 * GB)


def test_copies_of_another_loader():
    """They stay, and take nothing: the second of two loaders over the same data decides as the first."""
    topology = replace(TOPOLOGY, resident=frozenset({"device"}))
    plan = decide_gpu(topology, [replace(X, resident=frozenset({"device"})), Y], hardware(21, 1))
    assert [c.place for c in (plan.topology, *plan.features)] == ["device", "device", "device"]
    assert plan.gpu_bytes == 20 * GB
    assert "x: device. 93.1 GiB are on the GPU already." in str(plan)
    assert places([replace(X, resident=frozenset({"device"}))], hardware(1), "pinned-cuda") == ["pinned", "pinned"]
    assert places([replace(X, resident=frozenset({"device"}))], hardware(10), "cuda-cuda") == ["device", "device"]


def test_everything_by_hand():
    one = hardware(131, 131)
    assert places([X, Y, LABELS], one, "cuda-cuda") == ["device"] * 4
    assert places([X, Y, LABELS], one, "pinned-cuda") == ["pinned"] * 4
    assert places([X, Y, LABELS], one, "cpu-cuda") == ["host"] * 4
    assert decide_gpu(TOPOLOGY, [X], one, mode="cpu-cuda").host_bytes == 110 * GB
    assert decide_gpu(TOPOLOGY, [X], hardware(1, 20), mode="cpu-cuda").host_bytes == 10 * GB  # x stays in its file


@pytest.mark.parametrize(("word", "place"), ALIASES.items())
def test_other_words_for_a_place(word, place):
    """They decide the same; errors repeat the user's word."""
    one, small = hardware(131, 131), hardware(0.1, 1)
    assert decide_gpu(TOPOLOGY, [X, LABELS], one, mode=word) == decide_gpu(TOPOLOGY, [X, LABELS], one, mode=place)
    fixed = replace(X, can_map=False)
    said = []
    for mode in (word, place):
        with pytest.raises(CapacityError, match=f"placement='{mode}' needs") as error:
            decide_gpu(TOPOLOGY, [fixed], small, mode=mode)
        said.append(str(error.value).replace(mode, place))
    assert said[0] == said[1]


def test_parts_by_hand():
    four = hardware(131, gpus_per_node=4)
    assert places([X, Y, LABELS], four, "sharded") == ["device", "sharded", "sharded", "device"]
    assert places([X, Y, LABELS], four, "distributed") == ["device", "distributed", "distributed", "device"]
    assert places([X, Y], hardware(39, gpus_per_node=4), "sharded") == ["sharded", "sharded", "sharded"]
    assert places([X, Y], hardware(32, gpus_per_node=4, peer_access=False), "distributed") == [
        "pinned", "distributed", "distributed",
    ]  # fmt: skip
    # One GPU holds all of them, so that the same script runs there.
    alone = hardware(131, together=False, peer_access=False, wholegraph=False)
    for mode in ("sharded", "distributed"):
        assert places([X, Y], alone, mode) == ["device", "device", "device"]


def test_modes_that_cannot_be():
    four = {"gpus_per_node": 4}
    with pytest.raises(InputError, match=r"Expected placement to be one of \['auto'.*got 'gpu'"):
        places([X], hardware(1), "gpu")
    for mode in ("sharded", "distributed"):
        with pytest.raises(InputError, match="distributed=True"):
            places([X], hardware(500, **four, together=False), mode)
    with pytest.raises(InputError, match="peer access"):
        places([X], hardware(500, **four, peer_access=False), "sharded")
    with pytest.raises(MissingExtraError, match=r"\[cu13\]"):
        places([X], hardware(500, **four, wholegraph=False), "sharded")
    with pytest.raises(InputError, match="different names"):
        places([X, X], hardware(500))


def test_what_does_not_fit_and_remedies():
    with pytest.raises(CapacityError) as error:
        places([X, Y], hardware(99, gpus_per_node=4), "cuda-cuda")
    text = str(error.value)
    assert "placement='cuda-cuda' needs 121.1 GiB on each GPU, where 92.2 GiB are usable (70% of what is free)" in text
    assert "pass placement='auto', with which all fits" in text
    assert "use GPUs with 173.0 GiB of free memory" in text
    assert places([X, Y], Hardware(gpu_memory=int(173.1 * 2**30), host_memory=1), "cuda-cuda") == ["device"] * 3
    with pytest.raises(CapacityError, match=r"needs 121\.1 GiB in the memory of each node, where 92\.2 GiB are usable"):
        places([X, Y], hardware(1, 99), "pinned-cuda")
    with pytest.raises(CapacityError, match=r"121\.1 GiB of page-locked memory, of which a process may have 1\.0 GiB"):
        places([X, Y], hardware(1, pinnable=2**30), "pinned-cuda")
    with pytest.raises(CapacityError, match=r"30\.3 GiB on each GPU, where 16\.8 GiB"):
        places([X, Y], hardware(18, gpus_per_node=4), "sharded")
    with pytest.raises(CapacityError, match="let the GPUs hold a part each"):
        places([X, Y], hardware(99, gpus_per_node=4, together=False), "cuda-cuda")
    stuck = Item(name="x", nbytes=100 * GB, can_map=False)
    with pytest.raises(CapacityError, match=r"convert what cannot be mapped \(x\)") as error:
        places([stuck], hardware(32, 50))
    assert "pass placement='auto'" not in str(error.value)


def test_figures():
    plan = decide_gpu(TOPOLOGY, [X, Y], hardware(54, gpus_per_node=4))
    assert "x: sharded. 93.1 GiB do not fit" in str(plan)
    assert "Needed per GPU: 50.3 GiB of 50.3 GiB usable." in str(plan)
    assert plan.gpu_bytes == 10 * GB + 25 * GB + 5 * GB + sum(c.cache_bytes for c in plan.features)
    caches = [pytest.approx(14 * GB * 5 / 6, rel=1e-6), pytest.approx(14 * GB / 6, rel=1e-6)]
    assert [c.cache_bytes for c in plan.features] == caches


def test_rows_of_features_that_only_the_cpu_reads_are_cached():
    (x,) = decide_gpu(TOPOLOGY, [X], hardware(15, 99)).features
    assert (x.place, x.cache_bytes) == ("host", pytest.approx(5 * GB))
    assert x.reason.endswith("where only the CPU reads. 4.7 GiB of hot rows are kept on the GPU.")
    assert decide_gpu(TOPOLOGY, [X], hardware(90, 500), mode="cpu-cuda").features[0].cache_bytes == 0


def test_wrong_numbers():
    for change in ({"gpu_memory": 0}, {"host_memory": 0}, {"gpus_per_node": 0}, {"num_nodes": 0}, {"pinnable": -1}):
        with pytest.raises(InputError, match=next(iter(change))):
            Hardware(**{"gpu_memory": GB, "host_memory": GB, **change})


def test_hundreds_of_features_are_decided_quickly():
    many = [Item(name=str(k), nbytes=k * GB, can_map=k % 3 > 0, can_shard=k % 7 > 0) for k in range(300)]
    plan = decide_gpu(TOPOLOGY, many, hardware(50, 20_000, gpus_per_node=8, num_nodes=2))
    assert plan.gpu_bytes <= plan.gpu_usable
    assert plan.topology.place == "device"


items = st.builds(
    Item, name=st.uuids().map(str), nbytes=st.integers(0, 1000), can_map=st.booleans(), can_shard=st.booleans(),
    in_memory=st.booleans(),
)  # fmt: skip
machines = st.builds(
    Hardware, gpu_memory=st.integers(1, 3000), host_memory=st.integers(1, 3000), gpus_per_node=st.integers(1, 4),
    num_nodes=st.integers(1, 3), pinnable=st.none() | st.integers(0, 2000), peer_access=st.booleans(),
    wholegraph=st.booleans(), together=st.booleans(),
)  # fmt: skip


@given(
    topology=items, features=st.lists(items, max_size=5, unique_by=lambda i: i.name), machine=machines, data=st.data()
)
def test_every_placement_fits(topology, features, machine, data):
    mode = data.draw(st.sampled_from(MODES))
    try:
        plan = decide_gpu(topology, features, machine, mode=mode)
    except CapacityError:
        total = topology.nbytes + sum(i.nbytes for i in features)
        assert mode in ("cpu-cuda", "pinned-cuda") or total > machine.gpu_usable  # else each GPU had room for all
        stuck = [i for i in (topology, *features) if not i.can_map and not i.in_memory]
        assert mode != "auto" or stuck
        return
    except (InputError, MissingExtraError):
        assert mode in ("sharded", "distributed")
        return
    parts = {"device": 1, "sharded": machine.gpus_per_node, "distributed": machine.world_size}
    gpu, host, pinned = 0, 0, 0
    for choice in (plan.topology, *plan.features):
        item = choice.item
        assert choice.place in ("device", "pinned", "host") or (item.can_shard and machine.together)
        assert choice.place != "sharded" or (machine.peer_access and machine.wholegraph and machine.gpus_per_node > 1)
        gpu += choice.cache_bytes + (-(-item.nbytes // parts[choice.place]) if choice.place in parts else 0)
        stays = item.in_memory or choice.place not in ("pinned", "host") or (choice.place == "host" and item.can_map)
        host += 0 if stays else item.nbytes
        pinned += item.nbytes if choice.place == "pinned" else 0
        assert choice.cache_bytes <= item.nbytes * 0.2
        assert choice.reason.endswith(".")
    assert plan.topology.place != "distributed"
    assert gpu == plan.gpu_bytes <= plan.gpu_usable == machine.gpu_usable
    assert host <= plan.host_bytes <= plan.host_usable
    assert pinned == plan.pinned_bytes <= (pinned if machine.pinnable is None else machine.pinnable)
    if mode == "auto" and topology.nbytes + sum(i.nbytes for i in features) <= machine.gpu_usable:
        assert {c.place for c in (plan.topology, *plan.features)} == {"device"}
