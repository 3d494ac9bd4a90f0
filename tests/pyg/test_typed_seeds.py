"""Seed nodes of several types in one batch."""

import pytest
import torch
from helpers_pyg import Foreign, all_same, check_hetero_batch

from manyhop.errors import InputError, StateError
from manyhop_pyg import HGTLoader, NeighborLoader, NeighborSampler, NodeLoader

TYPES = ("paper", "venue", "author")


def seeds(hetero):
    mask = torch.zeros(30, dtype=torch.bool)
    mask[[3, 9, 20, 21]] = True
    return {"paper": torch.arange(5, 35), "venue": None, "author": mask}


def make(hetero, kind="neighbor", **options):
    options = {"batch_size": 7, "shuffle": True, "seed": 1} | options
    if kind == "hgt":
        return HGTLoader(hetero, [4, 3], seeds(hetero), **options)
    return NeighborLoader(hetero, [3, 2], seeds(hetero), **options)


@pytest.mark.parametrize("kind", ["neighbor", "hgt"])
def test_each_seed_is_in_one_batch(hetero, kind):
    found = {t: [] for t in TYPES}
    mixed = 0
    for batch in make(hetero, kind):
        check_hetero_batch(batch, hetero)
        sizes = {t: batch[t].batch_size for t in TYPES}
        assert sum(sizes.values()) in (7, 38 % 7)
        assert "batch_size" not in batch["field"]
        mixed += sum(n > 0 for n in sizes.values()) > 1
        for t, n in sizes.items():
            assert batch[t].input_id.shape == (n,)
            if kind == "neighbor":
                assert batch[t].num_sampled_nodes[0] == n
            found[t] += [batch[t].n_id[:n]]
            expected = seeds(hetero)[t]
            if t == "paper":
                assert torch.equal(expected[batch[t].input_id], batch[t].n_id[:n])
            else:  # all nodes, and a mask, whose ids are those of nodes
                assert torch.equal(batch[t].input_id, batch[t].n_id[:n])
    assert mixed > 3
    assert torch.cat(found["paper"]).sort().values.tolist() == list(range(5, 35))
    assert torch.cat(found["venue"]).sort().values.tolist() == [0, 1, 2, 3]
    assert torch.cat(found["author"]).sort().values.tolist() == [3, 9, 20, 21]


@pytest.mark.parametrize("kind", ["neighbor", "hgt"])
def test_fixed_sizes(hetero, kind):
    padded = list(make(hetero, kind, pad="auto"))
    shapes = [
        [(store._key, key, value.shape) for store in b.stores for key, value in store.items() if torch.is_tensor(value)]
        for b in padded
    ]
    assert all(found == shapes[0] for found in shapes)
    for plain, batch in zip(make(hetero, kind), padded, strict=True):
        for t in TYPES:
            mask, n = batch[t].seed_mask, plain[t].batch_size
            assert batch[t].batch_size == mask.numel() == batch[t].input_id.numel() == 7
            assert mask.tolist() == [i < n for i in range(mask.numel())]
            assert torch.equal(batch[t].input_id[:n], plain[t].input_id)
            assert torch.equal(batch[t].n_id[:n], plain[t].n_id[:n])
            assert torch.equal(batch[t].n_id[batch[t].node_mask], plain[t].n_id)
        for t in plain.edge_types:
            real = batch[t].edge_index[:, batch[t].edge_mask]
            for k in (0, 1):
                expected = plain[t[2 * k]].n_id[plain[t].edge_index[k]]
                assert torch.equal(batch[t[2 * k]].n_id[real[k]], expected)


def test_the_kinds_of_seeds_are_part_of_a_state(hetero):
    other = NeighborLoader(hetero, [3, 2], {"paper": torch.arange(38)}, batch_size=7, shuffle=True, seed=1)
    with pytest.raises(StateError, match="type of the seeds"):
        other.load_state_dict(make(hetero).state_dict())


def test_one_type_in_a_dict_is_that_type(hetero):
    given = torch.tensor([5, 3, 3, 8])
    one = NeighborLoader(hetero, [3, 2], ("paper", given), batch_size=3, seed=1)
    same_one = NeighborLoader(hetero, [3, 2], {"paper": given}, batch_size=3, seed=1)
    assert all_same(list(one), list(same_one))


@pytest.mark.parametrize("given", [False, True])
def test_times(hetero, given):
    hetero["paper"].time = torch.arange(40) % 7
    hetero["author"].time = torch.arange(30) % 5
    ids = {"author": torch.arange(30), "paper": torch.arange(40)}
    times = {"paper": torch.arange(40) % 3, "author": torch.arange(30) % 4} if given else None
    loader = NeighborLoader(hetero, [4, 3], ids, input_time=times, time_attr="time", batch_size=9, shuffle=True)
    for batch in loader:
        trees = {t: batch[t].batch[: batch[t].batch_size] for t in ids}
        assert torch.cat([trees["author"], trees["paper"]]).tolist() == list(range(sum(map(len, trees.values()))))
        latest = {t: (times or {k: hetero[k].time for k in ids})[t][batch[t].input_id] for t in ids}
        if given:
            assert all(torch.equal(batch[t].seed_time, latest[t]) for t in ids)
        of_tree = torch.cat([latest["author"], latest["paper"]])
        for t in ids:
            n = batch[t].batch_size
            assert (batch[t].time[n:] <= of_tree[batch[t].batch[n:]]).all()


def test_input_ids(hetero):
    ids = {"paper": torch.tensor([4, 5]), "author": torch.tensor([6])}
    loader = NodeLoader(
        hetero,
        NeighborSampler(hetero, [2]),
        ids,
        input_id={"paper": torch.tensor([7, 8]), "author": torch.tensor([9])},
        batch_size=3,
    )
    (batch,) = list(loader)
    assert batch["paper"].input_id.tolist() == [7, 8]
    assert batch["author"].input_id.tolist() == [9]


@pytest.mark.parametrize("kind", ["neighbor", "hgt"])
def test_a_batch_of_given_seeds(hetero, kind):
    loader = make(hetero, kind)
    for i, expected in enumerate(loader):
        given = {t: expected[t].n_id[: expected[t].batch_size] for t in TYPES}
        batch = loader.batch(given, key=(1, 0, i))
        assert all(torch.equal(batch[t].n_id, expected[t].n_id) for t in TYPES)
        assert all(batch[t].batch_size == expected[t].batch_size for t in TYPES)
    one = loader.batch({"author": torch.tensor([4])})
    assert one["author"].batch_size == 1
    with pytest.raises(InputError, match="got seeds without types"):
        loader.batch([1, 2])
    with pytest.raises(InputError, match=r"got seeds of \['author'\]"):
        NeighborLoader(hetero, [2], "paper").batch({"author": [1]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_nodes": {}}, "got an empty dict"),
        ({"input_nodes": {"paper": None, "film": None}}, "Unknown node type 'film' in input_nodes"),
        ({"input_nodes": {"paper": torch.tensor([40])}}, r"in \[0, 40\), got 40"),
        ({"input_id": {"paper": torch.arange(40)}}, r"input_id as a dict for the types of the seeds.*got \['paper'\]"),
        ({"input_id": torch.arange(74)}, "got a Tensor"),
        ({"input_nodes": "paper", "input_id": {"paper": torch.arange(40)}}, "as a tensor for seeds of one type"),
        ({"node_sampler": Foreign()}, "need manyhop_pyg.NeighborSampler or HGTSampler, got a Foreign"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(list(value)),
)
def test_wrong_arguments(hetero, options, message):
    how = {"node_sampler": NeighborSampler(hetero, [2]), "input_nodes": {"paper": None, "author": None}} | options
    with pytest.raises(InputError, match=message):
        NodeLoader(hetero, **how)


def test_data_without_types(data):
    with pytest.raises(InputError, match="as Data has no types"):
        NeighborLoader(data, [2], {"paper": torch.arange(3)})
