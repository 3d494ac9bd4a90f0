"""What a batch that the CPU makes costs Python."""

from call_budget import BATCHES, WARM_UP, Served, check_calls
from torch import arange

from manyhop_pyg import LinkNeighborLoader, NeighborLoader

SEEDS = arange(4 * (WARM_UP + BATCHES + 4)) % 60


def test_a_batch_of_nodes(data):
    check_calls(NeighborLoader(data, [3, 2], input_nodes=SEEDS, batch_size=4, shuffle=True, seed=1), 175)


def test_a_typed_batch_of_nodes(hetero):
    seeds = ("paper", SEEDS % 40)
    check_calls(NeighborLoader(hetero, [3, 2], input_nodes=seeds, batch_size=4, shuffle=True, seed=1), 294)


def test_a_batch_of_links(data):
    links = data.edge_index.repeat(1, 2)
    loader = LinkNeighborLoader(
        data, [3, 2], edge_label_index=links, neg_sampling="binary", batch_size=4, shuffle=True, seed=1
    )
    check_calls(loader, 230)


def test_a_batch_of_given_seeds(data):
    check_calls(Served(NeighborLoader(data, [3, 2], seed=1)), 140)
