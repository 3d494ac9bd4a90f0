"""Tensors and topology in their memory: placed once, read by all loaders of the process."""

from manyhop.memory.stores.copies import WHOLE_ONCE, checksum
from manyhop.memory.stores.places import (
    GPURows,
    StoreExchange,
    as_it_is,
    check_graph_place,
    leaves_host,
    rows_in,
    store_device,
)
from manyhop.memory.stores.rows_of_nodes import NodeRows, counts_of_parts
from manyhop.memory.stores.spread import TopologyPlace, is_held, place_for_topology, topology_place

__all__ = [
    "WHOLE_ONCE",
    "GPURows",
    "NodeRows",
    "StoreExchange",
    "TopologyPlace",
    "as_it_is",
    "check_graph_place",
    "checksum",
    "counts_of_parts",
    "is_held",
    "leaves_host",
    "place_for_topology",
    "rows_in",
    "store_device",
    "topology_place",
]
