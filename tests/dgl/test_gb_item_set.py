"""Item sets: what they hold, and what an index gives."""

import numpy as np
import pytest
import torch

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(torch.as_tensor(a), torch.as_tensor(b))


@pytest.mark.parametrize(
    ("items", "count"),
    [
        (7, 7),
        (torch.tensor(7, dtype=torch.int32), 7),
        (torch.arange(10, 17), 7),
        (np.arange(10, 17), 7),
        ([3, 1, 4, 1], 4),
        ((torch.arange(5), torch.arange(5, 10)), 5),
        ((torch.arange(10).view(-1, 2), np.arange(15).reshape(-1, 3), list(range(5))), 5),
        (range(6), 6),
    ],
)
def test_indices_slices_and_iteration_agree(items, count):
    item_set = gb.ItemSet(items)
    assert len(item_set) == count
    one_by_one = list(item_set)
    assert len(one_by_one) == count
    for i, item in enumerate(one_by_one):
        assert equal(item_set[i], item)
        assert equal(item_set[i - count], item)
    ids = [2, 0, 2]
    for index in (torch.tensor(ids), torch.tensor(ids, dtype=torch.int32), np.array(ids), ids, torch.tensor([-1, 0])):
        for k, i in enumerate(torch.as_tensor(index).tolist()):
            found = item_set[index]
            row = tuple(part[k] for part in found) if isinstance(found, tuple) else found[k]
            assert equal(row, one_by_one[i])
    whole = item_set[:]
    part = item_set[1:3]
    first = part[0] if isinstance(part, tuple) else part
    assert len(first) == 2
    assert len(whole[0] if isinstance(whole, tuple) else whole) == count
    with pytest.raises(IndexError, match=r"out of range"):
        item_set[count]
    with pytest.raises(IndexError, match=r"out of range"):
        item_set[torch.tensor([0, count])]
    with pytest.raises(TypeError, match="indices must be"):
        item_set[1.5]
    with pytest.raises(TypeError, match="indices must be"):
        item_set["1"]


def test_numbers_have_the_dtype_of_the_scalar():
    item_set = gb.ItemSet(torch.tensor(5, dtype=torch.int32), names="seeds")
    assert item_set[:].dtype == item_set[torch.tensor([1])].dtype == item_set[1].dtype == torch.int32
    assert gb.ItemSet(5)[:].dtype == torch.int64
    assert isinstance(gb.ItemSet(5)[2], int)
    assert [int(x) for x in gb.ItemSet(5)[::-2]] == [4, 2, 0]


@pytest.mark.parametrize("items", [iter(range(6)), ["a", "b"], {1, 2}], ids=["iterator", "text", "set"])
def test_items_that_are_not_numbers_in_memory(items):
    with pytest.raises(InputError, match="Expected items as a tensor or an array of numbers"):
        gb.ItemSet(items)


def test_names():
    assert gb.ItemSet(5, names="seeds").names == ("seeds",)
    pair = (torch.arange(2), torch.arange(2))
    item_set = gb.ItemSet(pair, names=("seeds", "labels"))
    assert item_set.names == ("seeds", "labels")
    assert item_set.num_items == 2
    assert "names=('seeds', 'labels')" in repr(item_set)
    with pytest.raises(InputError, match=r"Number of items \(2\) and names \(1\) must match"):
        gb.ItemSet(pair, names="seeds")
    with pytest.raises(InputError, match="same length"):
        gb.ItemSet((torch.arange(2), torch.arange(3)))
    with pytest.raises(InputError, match="at least one tensor"):
        gb.ItemSet(())
    with pytest.raises(InputError, match="at least 0"):
        gb.ItemSet(-1)
    with pytest.raises(InputError, match=r"got torch.uint64\. Convert them"):
        gb.ItemSet(torch.arange(3).to(torch.uint64), names="seeds")


def test_items_are_replaced_as_in_examples_of_graphbolt():
    item_set = gb.HeteroItemSet({"a:b:c": gb.ItemSet((torch.zeros(3, 2), torch.arange(3)), names=("seeds", "labels"))})
    item_set._itemsets["a:b:c"]._items = tuple(item.int() for item in item_set._itemsets["a:b:c"]._items)
    assert [item.dtype for item in item_set[:2]["a:b:c"]] == [torch.int32, torch.int32]


def test_several_types():
    assert gb.ItemSetDict is gb.HeteroItemSet
    user = gb.ItemSet((torch.arange(3), torch.arange(10, 13)), names=("seeds", "labels"))
    item = gb.ItemSet((torch.arange(5, 7), torch.arange(20, 22)), names=("seeds", "labels"))
    items = gb.HeteroItemSet({"user": user, "none": gb.ItemSet((user[:][0][:0],) * 2, user.names), "item": item})
    assert len(items) == 5
    assert items.names == ("seeds", "labels")
    assert equal(items[1], {"user": (1, 11)})
    assert equal(items[-1], {"item": (6, 21)})
    for i, found in enumerate(items):
        assert equal(found, items[i])
    assert equal(items[1:4], {"user": (user[1:][0], user[1:][1]), "item": item[:1]})
    assert equal(items[:3], {"user": user[:]})
    assert items[3:3] == {}
    mixed = items[torch.tensor([4, 0, 3, 2])]
    assert equal(mixed, {"user": (torch.tensor([0, 2]), torch.tensor([10, 12])), "item": item[[1, 0]]})
    assert equal(items[::2], items[torch.tensor([0, 2, 4])])
    with pytest.raises(IndexError, match="out of range"):
        items[5]
    assert "user" in repr(items)
    with pytest.raises(InputError, match="same names"):
        gb.HeteroItemSet({"a": user, "b": gb.ItemSet(3, names="seeds")})
    with pytest.raises(InputError, match="at least one"):
        gb.HeteroItemSet({})
