"""Which memory for what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhop.errors import CapacityError, InputError
from manyhop.memory.placement import RESERVE, Item, decide
from manyhop.system.units import in_units, parse_bytes

GB = 10**9


def item(name, size, can_map=True):
    return Item(name=name, nbytes=int(size * GB), can_map=can_map)


def places(topology, features, memory, **more):
    placement = decide(topology, features, memory=int(memory * GB), **more)
    return [placement.topology.place, *(c.place for c in placement.features)]


TOPOLOGY, X, Y = item("topology", 2), item("x", 10), item("y", 1)


def test_what_fits_is_in_memory():
    assert places(TOPOLOGY, [X, Y], 17) == ["process"] * 3
    assert places(TOPOLOGY, [X, Y], 17, num_nodes=2) == ["process"] * 3
    assert places(TOPOLOGY, [X, Y], 17, ranks_per_node=4) == ["shared"] * 3
    assert places(TOPOLOGY, [], 3) == ["process"]


def test_the_largest_features_are_sharded():
    assert places(TOPOLOGY, [X, Y], 16, num_nodes=2) == ["process", "sharded", "process"]
    assert places(TOPOLOGY, [X, Y], 10, num_nodes=2, ranks_per_node=2) == ["shared", "sharded", "shared"]
    assert places(TOPOLOGY, [Y, X, item("z", 9)], 12.5, num_nodes=3) == ["process", "process", "sharded", "sharded"]


def test_some_are_not_sharded():
    whole = Item(name="w", nbytes=12 * GB, can_map=True, can_shard=False)
    assert places(TOPOLOGY, [whole, X], 22, num_nodes=2) == ["process", "mapped", "process"]
    assert places(TOPOLOGY, [whole, X], 24, num_nodes=2) == ["process", "process", "sharded"]
    stuck = Item(name="w", nbytes=12 * GB, can_map=False, can_shard=False)
    with pytest.raises(CapacityError, match=r"11\.2 GiB must be in the memory of each node"):
        decide(TOPOLOGY, [stuck], memory=10 * GB, num_nodes=4)


def test_what_does_not_fit_stays_in_files():
    assert places(TOPOLOGY, [X, Y], 16) == ["process", "mapped", "process"]
    assert places(TOPOLOGY, [X, Y], 16, num_nodes=2, can_shard=False) == ["process", "mapped", "process"]
    assert places(TOPOLOGY, [X, Y], 8, num_nodes=2) == ["process", "mapped", "process"]
    assert places(TOPOLOGY, [X, Y], 3) == ["process", "mapped", "mapped"]
    assert places(TOPOLOGY, [X, Y], 2) == ["mapped", "mapped", "mapped"]
    assert places(TOPOLOGY, [item("x", 10, False), item("z", 3)], 16) == ["process", "process", "mapped"]


def test_figures_and_reasons():
    placement = decide(TOPOLOGY, [X, Y], memory=8 * GB, num_nodes=2, ranks_per_node=3)
    assert "x: mapped. 9.3 GiB do not fit in the 6.0 GiB that are usable" in str(placement)
    assert "Needed per node: 2.8 GiB of 6.0 GiB usable." in str(placement)
    assert (placement.host_bytes, placement.place_of("x")) == (3 * GB, "mapped")
    assert decide(TOPOLOGY, [X], memory=10 * GB, num_nodes=2).host_bytes == 7 * GB


def test_remedies_are_true():
    """Each of them, followed, leads to a placement."""
    topology, x = item("topology", 2, False), item("x", 10, False)
    with pytest.raises(CapacityError) as error:
        decide(topology, [x], memory=10 * GB)
    text = str(error.value)
    assert "use nodes with 14.0 GiB" in text
    assert "shard the features over 2 nodes or more" in text
    assert "convert what cannot be mapped (topology, x)" in text
    assert places(topology, [x], 15.1) == ["process", "process"]
    assert places(topology, [x], 10, num_nodes=2) == ["process", "sharded"]
    assert places(topology, [item("x", 10)], 10) == ["process", "mapped"]
    with pytest.raises(CapacityError) as error:
        decide(topology, [x], memory=1 * GB, num_nodes=4, can_shard=False)
    assert "shard the features" not in str(error.value)  # the topology alone is too large


items = st.builds(Item, name=st.uuids().map(str), nbytes=st.integers(0, 1000), can_map=st.booleans())


@given(
    topology=items,
    features=st.lists(items, max_size=6, unique_by=lambda i: i.name),
    memory=st.integers(1, 4000),
    nodes=st.integers(1, 4),
    ranks=st.integers(1, 4),
    can_shard=st.booleans(),
)
def test_every_placement_fits(topology, features, memory, nodes, ranks, can_shard):
    usable = int(memory * (1 - RESERVE))
    shards = nodes if can_shard else 1
    try:
        placement = decide(
            topology, features, memory=memory, ranks_per_node=ranks, num_nodes=nodes, can_shard=can_shard
        )
    except CapacityError:
        loose = [i.nbytes for i in features if not i.can_map]
        fixed = 0 if topology.can_map else topology.nbytes
        assert fixed + sum(-(-n // shards) for n in loose) > usable
        return
    needed = 0
    for choice in (placement.topology, *placement.features):
        assert choice.place in {"process", "mapped", "sharded"} if ranks == 1 else {"shared", "mapped", "sharded"}
        assert choice.place != "mapped" or choice.item.can_map
        assert choice.place != "sharded" or (shards > 1 and choice.item is not topology)
        needed += {"mapped": 0, "sharded": -(-choice.item.nbytes // shards)}.get(choice.place, choice.item.nbytes)
    assert needed == placement.host_bytes <= usable
    everything = topology.nbytes + sum(i.nbytes for i in features)
    if everything <= usable:
        assert not {c.place for c in placement.features} & {"mapped", "sharded"}


def test_wrong_numbers():
    for change in ({"memory": 0}, {"ranks_per_node": 0}, {"num_nodes": -1}):
        with pytest.raises(InputError, match=next(iter(change))):
            decide(TOPOLOGY, [X], **{"memory": GB, **change})
    with pytest.raises(InputError, match="different names"):
        decide(TOPOLOGY, [X, X], memory=GB)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("12GiB", 12 << 30), ("12G", 12 << 30), ("12GB", 12 * 10**9), ("1.5k", 1536), (" 3 MiB ", 3 << 20),
     ("0", 0), ("2t", 2 << 40), ("7B", 7)],
)  # fmt: skip
def test_bytes(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1", "12 apples", "1e9", "12XB", "nan"])
def test_bytes_that_are_none(text):
    with pytest.raises(InputError, match="number of bytes"):
        parse_bytes(text)


def test_units():
    texts = ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3072.0 TiB"]
    assert [in_units(n) for n in (0, 1023, 1536, 5 << 30, 3 << 50)] == texts
