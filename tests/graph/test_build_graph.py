"""Building CSC tables: order, permutation, times, weights, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.errors import CapacityError, GraphError
from manyhop.graph import EdgeInput, build_graph, time_key
from manyhop.sampling.reference.picks import FULL, alias_table

E = ("a", "to", "b")
N = {"a": 5, "b": 3}


def build(**kwargs):
    return build_graph(N, {E: EdgeInput(**kwargs)}).csc[E]


def test_edge_list_is_grouped_by_destination_in_given_order():
    csc = build(row=torch.tensor([4, 0, 3, 1]), col=torch.tensor([2, 0, 2, 0]))
    assert csc.colptr.tolist() == [0, 2, 2, 4]
    assert csc.row.tolist() == [0, 1, 4, 3]
    assert csc.perm.tolist() == [1, 3, 0, 2]
    assert csc.row.dtype == csc.perm.dtype == torch.int32
    assert (csc.num_src, csc.num_dst, csc.num_edges) == (5, 3, 4)


def test_times_sort_each_column_stably():
    time = torch.tensor([5, 1, 5, 0])
    csc = build(row=torch.tensor([4, 0, 3, 1]), col=torch.tensor([2, 2, 2, 0]), time=time)
    assert csc.perm.tolist() == [3, 1, 0, 2]
    assert csc.time.tolist() == [0, 1, 5, 5]


def test_edges_take_the_time_of_their_source():
    graph = build_graph(
        N,
        {E: EdgeInput(row=torch.tensor([4, 0, 3]), col=torch.tensor([1, 1, 1]))},
        node_time={"a": torch.tensor([9, 0, 0, 2, 1])},
    )
    assert graph.csc[E].row.tolist() == [4, 3, 0]
    assert graph.csc[E].time.tolist() == [1, 2, 9]


def test_compressed_input_keeps_its_edge_ids():
    csc = build(
        row=torch.tensor([3, 1, 4]),
        colptr=torch.tensor([0, 2, 2, 3]),
        edge_id=torch.tensor([2, 0, 1]),
        time=torch.tensor([7, 1, 9]),
    )
    assert csc.row.tolist() == [1, 3, 4]
    assert csc.perm.tolist() == [0, 2, 1]
    assert csc.time.tolist() == [7, 9, 1]


def test_weights_lie_in_stored_order_with_a_table_per_column():
    csc = build(row=torch.tensor([4, 0, 3, 1]), col=torch.tensor([2, 0, 2, 0]), weight=torch.tensor([1.0, 2, 0, 4]))
    assert csc.weight.tolist() == [2, 4, 1, 0]
    assert csc.weight.dtype == torch.float64
    assert csc.alias.dtype == torch.int64
    two_thirds = round(2**32 * 2 / 3)
    assert [divmod(x, 2**32) for x in csc.alias.tolist()] == [(two_thirds - 2**32, 1), (0, 1), (0, 0), (0, 0)]
    assert csc.num_positive.tolist() == [2, 0, 1]
    assert build(row=torch.tensor([4]), col=torch.tensor([2]), weight=torch.tensor([1])).num_positive is None


WEIGHTS = st.one_of(
    st.just(0.0),
    st.integers(0, 3).map(float),
    st.floats(0, 1),
    st.floats(0, 1e-307),  # denormal ones
    st.integers(-320, 300).map(lambda e: 10.0**e),
)


def probabilities(alias):
    """What an alias table ``[d]`` gives each entry, in units: a column has ``d * 2^32``."""
    threshold, other = np.divmod(alias.view(np.uint64), 1 << 32)
    units = threshold.astype(np.float64)
    np.add.at(units, other.astype(np.int64), float(FULL) - threshold)
    return units


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(WEIGHTS, max_size=70), min_size=3, max_size=3))
def test_alias_tables(columns):
    """They equal those of the readable form, and give the probabilities of the weights, none to a weight of zero."""
    col = torch.repeat_interleave(torch.tensor([len(c) for c in columns]))
    weight = torch.tensor([w for column in columns for w in column], dtype=torch.float64)
    csc = build(row=torch.zeros_like(col), col=col, weight=weight)
    for v, weights in enumerate(columns):
        column = slice(csc.colptr[v], csc.colptr[v + 1])
        alias, d = csc.alias[column].numpy(), len(weights)
        assert csc.weight[column].tolist() == weights
        assert alias.tolist() == alias_table(weights).tolist()
        if sum(weights) > 0:
            units, exact = probabilities(alias), np.array(weights) / math.fsum(weights) * d * FULL
            assert (units[np.array(weights) == 0] == 0).all()
            assert np.abs(units - exact).max() <= d


@pytest.mark.parametrize("weights", [[0.1] * 7, [5e-324] * 3, [1e300] * 49, [3.0]])
def test_equal_weights_are_all_full(weights):
    n = len(weights)
    csc = build(row=torch.zeros(n).long(), col=torch.zeros(n).long(), weight=torch.tensor(weights, dtype=torch.float64))
    assert csc.alias.tolist() == list(range(n))


@pytest.mark.parametrize("power", [1, 30])
def test_alias_table_of_a_hub(power):
    """A million weights, of which one in ten is zero; to the power of 30, few of them count."""
    n = 1_000_000
    rng = np.random.default_rng(3)
    weight = rng.random(n) ** power * (rng.random(n) < 0.9)
    zeros = torch.zeros(n, dtype=torch.int64)
    csc = build(row=zeros, col=zeros, weight=torch.from_numpy(weight))
    assert csc.alias.tolist() == alias_table(weight.tolist()).tolist()
    units = probabilities(csc.alias.numpy())
    assert (units[weight == 0] == 0).all()
    assert np.abs(units / (n * float(FULL)) - weight / math.fsum(weight)).max() < 2**-32


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"row": [0, 5], "col": [0, 0]}, r"source nodes .* in \[0, 5\), got 5"),
        ({"row": [0, 1], "col": [0, -1]}, r"destination nodes .* in \[0, 3\), got -1"),
        ({"row": [0, 1], "col": [0]}, r"of shape \[2\], got \[1\]"),
        ({"row": [0.5], "col": [0]}, "integer tensor, got torch.float32"),
        ({"row": [True], "col": [0]}, "integer tensor, got torch.bool"),
        ({"row": [0]}, "either col or colptr"),
        ({"row": [0], "colptr": [0, 0, 0, 2]}, r"rise from 0 to the number of edges \(1\), got 0 to 2"),
        ({"row": [0], "colptr": [0, 1]}, r"colptr .* of shape \[4\], got \[2\]"),
        ({"row": [0, 1], "col": [1, 0], "is_sorted": True}, "edges 0 and 1 .* not in order of destination"),
        ({"row": [0], "col": [0], "weight": [-1.0]}, "got -1.0 for edge 0"),
        ({"row": [0], "col": [0], "weight": [float("nan")]}, "got nan for edge 0"),
        ({"row": [0], "col": [0], "weight": [float("inf")]}, "got inf for edge 0"),
        ({"row": [0, 0], "col": [0, 0], "weight": [1e308, 1e308]}, "finite sum"),
        ({"row": [0], "col": [0], "weight": [1.0, 2.0]}, r"weights .* of shape \[1\], got \[2\]"),
        ({"row": [0], "col": [0], "time": [1, 2]}, r"times .* of shape \[1\], got \[2\]"),
    ],
)
def test_bad_edges_are_refused(kwargs, message):
    kwargs = dict(kwargs)
    doubles = {k: torch.tensor(kwargs.pop(k), dtype=torch.float64) for k in list(kwargs) if k == "weight"}
    kwargs = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in kwargs.items()} | doubles
    with pytest.raises(GraphError, match=message):
        build(**kwargs)


def test_unknown_node_types_are_refused():
    with pytest.raises(GraphError, match="unknown node type 'c'"):
        build_graph(N, {("c", "to", "b"): EdgeInput(row=torch.tensor([0]), col=torch.tensor([0]))})
    with pytest.raises(GraphError, match="unknown node type 'c'"):
        build_graph(N, {}, node_time={"c": torch.tensor([0])})


def test_a_graph_that_does_not_fit_raises(host_memory):
    host_memory(50)
    with pytest.raises(CapacityError, match=r"4 edges\) needs about .* GiB are free"):
        build(row=torch.tensor([4, 0, 3, 1]), col=torch.tensor([2, 0, 2, 0]))


def test_time_keys_keep_the_order_of_floats():
    time = torch.tensor([3.5, -2.0, 0.0, -0.0, float("-inf"), 1e-300, float("inf"), -7.25], dtype=torch.float64)
    key = time_key(time, floating=True)
    for i in range(len(time)):
        for j in range(len(time)):
            assert (time[i] < time[j]) == (key[i] < key[j])
    assert time_key(torch.tensor([1, 2]), floating=True)[1] == time_key(torch.tensor([2.0]), floating=True)[0]
    assert time_key(torch.tensor([1, 2], dtype=torch.int32), floating=False).tolist() == [1, 2]


def test_times_that_cannot_be_ordered_are_refused():
    with pytest.raises(GraphError, match="got NaN"):
        time_key(torch.tensor([float("nan")]), floating=True)
    with pytest.raises(GraphError, match=r"got torch\.bool"):
        time_key(torch.tensor([True]), floating=False)
