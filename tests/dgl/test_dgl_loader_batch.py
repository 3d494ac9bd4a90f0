"""``loader.batch(seeds)`` of DGL's loader, as tests/conformance has it, for tensors, types and seed edges."""

import pytest
from test_dgl_loader_tensors import graph, links, loader, same_data, same_links


@pytest.mark.parametrize("kind", ["plain", "typed"])
@pytest.mark.parametrize("options", [{}, {"use_prefetch_thread": False}])
def test_a_batch_of_given_seeds(kind, options):
    """It is that of an epoch of the same key."""
    g = graph(kind)
    made = loader(kind, g, output="tensors", **options)
    for i, batch in enumerate(loader(kind, g)):
        same_data(made.batch(batch[1], key=(3, 0, i)), batch, g)
    assert (made.epoch, made.stats().batches) == (0, 0)


def test_a_batch_of_given_edges():
    g = graph("plain")
    for i, batch in enumerate(links("plain", g)):
        same_links(links("plain", g, output="tensors").batch(batch[1].edata["_ID"], key=(3, 0, i)), batch, g)
