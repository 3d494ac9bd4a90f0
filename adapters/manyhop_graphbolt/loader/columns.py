"""The features that minibatches take rows from, and chains whose ranks exchange such rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows
from manyhop_graphbolt.features.feature import Feature, own_feature, title_of
from manyhop_graphbolt.features.tensors import TorchBasedFeature
from manyhop_graphbolt.loader.chain import Chain, to_gpu
from manyhop_graphbolt.stages.features import FeatureFetcher


class PlacedFeatures:
    """Features, each where a GPU reads it.

    Args:
        given: title -> the tensor that the feature has, or what ranks exchange its rows by.
        placed: title -> what a GPU reads instead, of those that the loader places.
    """

    def __init__(self, given: dict[str, Any], placed: dict[str, object]) -> None:
        self.given, self._placed = given, placed
        self.sources: list[object] = [placed.get(title, tensor) for title, tensor in given.items()]

    def request(self, request: RowRequest) -> RowRequest:
        """Return the request to where the GPU reads the rows; as it is for features that came later."""
        if self.given.get(request.name) is not request.source or request.name not in self._placed:
            return request
        return RowRequest(self._placed[request.name], request.index, request.dim, request.name, request.bound)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: minibatches share no object with a store."""
        return frozenset()


class FeatureColumns:
    """The ``Columns`` of a loader.

    Args:
        fetchers: the stages that fetch features.
    """

    kept_rows = None

    def __init__(self, fetchers: Sequence[FeatureFetcher]) -> None:
        self._wanted = [(one.feature_store, key, title_of(*key)) for one in fetchers for key in one.feature_keys()]

    @property
    def complete(self) -> bool:
        """Whether a GPU can read all of them: none has a ``read`` of the user's own."""
        return all(feature is not None and feature.table() is not None for _, feature in self._features())

    def named(self) -> list[tuple[str, object]]:
        """Return title and tensor of the features that the loader places."""
        return list(self._current(placed=True).items())

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFeatures:
        """Return the features that the stores have now."""
        placed = {title: source(title, tensor) for title, tensor in self._current(placed=True).items()}
        return PlacedFeatures(self._current(), placed)

    def fits(self, placed: PlacedFeatures) -> bool:
        """Whether no feature was replaced, added or removed since. Asked for each batch."""
        for store, key, title in self._wanted:
            feature = own_feature(store, key)
            if (None if feature is None else feature.table()) is not placed.given.get(title):
                return False
        return True

    def tables(self) -> list[Any]:
        """Return what rows are read from."""
        tables = [None if feature is None else feature.table() for _, feature in self._features()]
        return [table for table in tables if table is not None]

    def exchanged(self) -> dict[str, ShardedRows | DistributedRows]:
        """Return the features whose rows ranks exchange, by title."""
        found = {}
        for store, key, title in self._wanted:
            with suppress(FeatureError):  # of a feature that is not there, which is raised for the minibatch
                feature = own_feature(store, key)
                rows = None if feature is None else feature.table()
                if isinstance(rows, ShardedRows | DistributedRows):
                    found[title] = rows
        return found

    def _features(self) -> Iterator[tuple[str, Feature | None]]:
        for store, key, title in self._wanted:
            yield title, own_feature(store, key)

    def _current(self, *, placed: bool = False) -> dict[str, Any]:
        """Title -> what rows are read from; ``placed``: without those that a cache of the user's is before."""
        found: dict[str, Any] = {}
        for title, feature in self._features():
            table = None if feature is None else feature.table()
            if table is not None and (isinstance(feature, TorchBasedFeature) or not placed):
                found[title] = table
        return found


def exchanged(chain: Chain) -> dict[str, ShardedRows | DistributedRows]:
    """Return the features that a chain fetches and whose rows ranks exchange, by title."""
    return FeatureColumns(chain.all_fetchers()).exchanged()


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
        raise InputError(
            f"Expected a DistributedItemSampler, and only stages that handle minibatches one by one, {why}, got "
            f"a chain that begins with {type(chain.source).__name__}. Make it such a chain on all ranks, or keep the "
            "rows where each rank reads alone: placement='shared', or 'sharded' with device='cuda'."
        )
    fetchers = [one for one in chain.fetchers if FeatureColumns([one]).exchanged()]
    if len(fetchers) > 1:
        raise InputError(
            f"Expected one fetch_feature, {why}, got {len(fetchers)}. Name all features of the ranks in one of them."
        )
    before = chain.stages[: chain.stages.index(fetchers[0])]
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
