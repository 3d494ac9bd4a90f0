"""Exchanges of both kinds: of nodes over gloo, and of GPUs, whose kernels run on the CPU here, with gloo for NCCL."""

import sys
import time
from pathlib import Path

from manyhop.errors import CapacityError, FeatureError, RankError
from manyhop.features import Shards
from manyhop.features.sources import DistributedRows, HotRows, ShardedRows

ENV = {"TRITON_INTERPRET": "1"}
KINDS = ["nodes", "GPUs"]
sys.path.insert(0, str(Path(__file__).parents[1]))  # also of ranks


def make_exchange(kind, name="a test", timeout=100.0):
    if kind == "nodes":
        from manyhop.features.exchange.host import Exchange

        return Exchange(name, timeout=timeout)
    import fast_interpreter  # noqa: F401

    from manyhop.features.exchange.gpu.exchange import GPUExchange

    return GPUExchange(name, timeout=timeout)


def shard(kind, whole, world, hot=None):
    """This rank's, or node's, part of a tensor that all ranks know."""
    parts, mine = (world.num_nodes, world.node) if kind == "nodes" else (world.world_size, world.rank)
    own = Shards(len(whole), parts).rows_of(mine)
    rows = (ShardedRows if kind == "nodes" else DistributedRows)(whole[own.start : own.stop].clone(), len(whole), world)
    if hot is not None:
        rows.hot, rows.hot_rows = HotRows.of(hot, len(whole)), whole[hot]
    return rows


def raised(function, *args):
    """Class, text, ranks of the error of a call, and the seconds until then."""
    start = time.monotonic()
    try:
        function(*args)
    except (CapacityError, FeatureError, RankError) as error:
        return type(error).__name__, str(error), getattr(error, "ranks", None), time.monotonic() - start
    return None
