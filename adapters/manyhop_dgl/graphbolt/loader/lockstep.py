"""Chains that fetch rows which ranks exchange: one exchange for each minibatch, on all ranks."""

from __future__ import annotations

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop_dgl.graphbolt.items.sampler import DistributedItemSampler
from manyhop_dgl.graphbolt.loader.chain import Chain, to_gpu
from manyhop_dgl.graphbolt.loader.columns import FeatureColumns
from manyhop_dgl.graphbolt.stages.stage import is_filter


def exchanged(chain: Chain) -> dict[str, ShardedRows | DistributedRows]:
    """Return the features that a chain fetches and whose rows ranks exchange, by title."""
    return FeatureColumns(chain.fetchers).exchanged()


def check_exchanged(chain: Chain, *, distributed: bool, runs_ahead: bool) -> None:
    """Raise InputError where ranks would have to exchange rows, but go their own ways, or cannot.

    Args:
        chain: of the loader.
        distributed: whether ranks share the minibatches.
        runs_ahead: whether a thread, not the caller, runs the stages.
    """
    found = exchanged(chain)
    if not found:
        return
    why = f"as ranks exchange rows of {next(iter(found))} for every minibatch"
    if not distributed:
        begins = f"a chain that begins with {type(chain.source).__name__}"
        got = "a pipe of another kind" if isinstance(chain.source, DistributedItemSampler) else begins
        raise InputError(
            f"Expected a DistributedItemSampler, and only stages that handle minibatches one by one, {why}, got {got}. "
            "Make it such a chain on all ranks, or keep the rows where each rank reads alone: placement='shared', or "
            "'sharded' with device='cuda'."
        )
    fetchers = [one for one in chain.fetchers if FeatureColumns([one]).exchanged()]
    if len(fetchers) > 1:
        raise InputError(
            f"Expected one fetch_feature, {why}, got {len(fetchers)}. Name all features of the ranks in one of them."
        )
    stages = [stage for run in chain.ahead for stage in run.stages]
    before = stages[: stages.index(fetchers[0])]
    if any(map(is_filter, before)):
        raise InputError(f"Expected no filter before fetch_feature, {why}, got one. Put it after fetch_feature.")
    on_gpu = any(map(to_gpu, before))
    if on_gpu and (chain.grouped is None or not runs_ahead):
        raise InputError(
            f"Expected copy_to('cuda') before one stage that samples all layers, or after fetch_feature, {why}, got it "
            "elsewhere, or overlap_feature_fetch=False. Move it."
        )
    if on_gpu and not FeatureColumns(chain.fetchers).complete:
        raise InputError(
            f"Expected only features that a GPU can read, {why}, got some with a read of their own. Make them "
            "TorchBasedFeatures, or put copy_to('cuda') after fetch_feature."
        )
    if not on_gpu and any(isinstance(rows, DistributedRows) for rows in found.values()):
        raise InputError(
            f"Expected copy_to('cuda') before sampling, {why}, by GPUs, got a chain that fetches on the CPU. Put it "
            "there, or pass placement='sharded' to the feature, without device."
        )
