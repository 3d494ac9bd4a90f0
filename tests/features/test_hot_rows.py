"""Which rows of other nodes are kept."""

import torch

from manyhop import World
from manyhop.features import BufferPool, RowRequest, ShardedRows, Visits, rows_wanted

WORLD = World(0, (0, 1))


def sharded(num_rows: int, width: int) -> ShardedRows:
    return ShardedRows(torch.zeros(num_rows // 2, width), num_rows, WORLD)


def visited(x: ShardedRows, y: ShardedRows, other: ShardedRows) -> Visits:
    """Rows 10.. of ``x`` and ``y`` (read by the same ids) and 3.. of ``other`` are on the other node."""
    visits = Visits()
    for nodes, edges in (([1, 12, 12, 15], [5]), ([15, 19, 2], [4, 5]), ([19, 15], [5, 5])):
        n, e = torch.tensor(nodes), torch.tensor(edges, dtype=torch.int32)
        rows = visits([RowRequest(x, n), RowRequest(other, e), RowRequest(y, n)], BufferPool())
        assert [list(r.shape) for r in rows] == [[len(nodes), 2], [len(edges), 3], [len(nodes), 1]]
    return visits


def test_the_rows_asked_for_most_often_are_kept():
    x, y, other = sharded(20, 2), sharded(20, 1), sharded(6, 3)
    visits = visited(x, y, other)
    assert visits.rows == (2 + 2 + 2) + (1 + 2 + 1)
    (nodes, hot), (edges, hot_edges) = visits.hottest(0.1)
    assert nodes == [x, y]
    assert edges == [other]
    assert hot.tolist() == [15, 19]
    assert hot_edges.tolist() == []  # 0.1 of 6 rows is none
    assert visits.hottest(1.0)[0][1].tolist() == [12, 15, 19]


def test_a_float_counts_rows_and_an_integer_bytes():
    assert rows_wanted([sharded(20, 2), sharded(10, 1)], 0.5) == 15
    assert rows_wanted([sharded(20, 2), sharded(10, 1)], 41) == 10


def test_nothing_visited_is_nothing_kept():
    assert Visits().hottest(0.5) == Visits().hottest(100) == []
