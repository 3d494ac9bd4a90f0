"""What the loaders of all adapters share: epochs of batches, keys, resume, ranks. It knows no library of graphs."""

from manyhop.loading import _folders as folders
from manyhop.loading._checksum import WHOLE_ONCE, checksum
from manyhop.loading._distributed import Ranks, check_options, counting_in
from manyhop.loading._epoch import Epoch
from manyhop.loading._facts import graph_facts, plain, rows_fact
from manyhop.loading._gpu_copies import Copy, Version, is_movable, placed_graph
from manyhop.loading._iterator import EpochIterator, Item, Progress, Threads
from manyhop.loading._keys import current_key, current_turn, draw_seed, making, next_key
from manyhop.loading._loader import EpochLoader
from manyhop.loading._masks import check_no_mask
from manyhop.loading._resume import Resumable
from manyhop.loading._rows_of_nodes import NodeRows
from manyhop.loading._run import run_as_main
from manyhop.loading._swap import Swap

__all__ = [
    "WHOLE_ONCE",
    "Copy",
    "Epoch",
    "EpochIterator",
    "EpochLoader",
    "Item",
    "NodeRows",
    "Progress",
    "Ranks",
    "Resumable",
    "Swap",
    "Threads",
    "Version",
    "check_no_mask",
    "check_options",
    "checksum",
    "counting_in",
    "current_key",
    "current_turn",
    "draw_seed",
    "folders",
    "graph_facts",
    "is_movable",
    "making",
    "next_key",
    "placed_graph",
    "plain",
    "rows_fact",
    "run_as_main",
]
