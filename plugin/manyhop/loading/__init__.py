"""What the loaders of all adapters share: epochs of batches, keys, resume, ranks."""

from manyhop.loading import folders as folders
from manyhop.loading.facts import graph_facts, plain, rows_fact
from manyhop.loading.iterator import Epoch, EpochIterator, Item, Progress
from manyhop.loading.keys import (
    BatchContext,
    batch_key,
    current_batch,
    current_exchange,
    current_key,
    draw_seed,
    next_key,
)
from manyhop.loading.loader import EpochLoader
from manyhop.loading.options import (
    EngineName,
    check_engine,
    check_names,
    check_options,
    check_placement,
    check_rank_options,
)
from manyhop.loading.swap import Swap, run_as_main
from manyhop.loading.which_gpu import own_gpu

__all__ = [
    "BatchContext",
    "EngineName",
    "Epoch",
    "EpochIterator",
    "EpochLoader",
    "Item",
    "Progress",
    "Swap",
    "batch_key",
    "check_engine",
    "check_names",
    "check_options",
    "check_placement",
    "check_rank_options",
    "current_batch",
    "current_exchange",
    "current_key",
    "draw_seed",
    "folders",
    "graph_facts",
    "next_key",
    "own_gpu",
    "plain",
    "rows_fact",
    "run_as_main",
]
