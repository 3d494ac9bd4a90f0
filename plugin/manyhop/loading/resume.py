"""Loaders that go on where they were: what they save, and what they do with it."""

from __future__ import annotations

from typing import Any

from manyhop.loading.facts import brief
from manyhop.loading.iterator import Progress
from manyhop.loading.pipeline import LoaderState
from manyhop.loading.ranks import Ranks


class Resumable:
    """The part of a loader that saves where it stands."""

    seed: int | None
    """Of all epochs; ``None``: each epoch draws its own, which ``state_dict()`` has."""

    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    _progress: Progress
    _ranks: Ranks | None
    _num_items: int
    _shuffle: bool
    _own_order: bool

    def _stateful_sampler(self) -> Any:
        """The user's sampler, if it can save where it is."""
        if self._own_order:
            return None
        for sampler in (self.batch_sampler, self.sampler):
            if callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None)):
                return sampler
        return None

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, from 0; before the first one, the epoch to come."""
        return self._progress.epoch

    def _state(self) -> LoaderState:
        p = self._progress
        drawn = self.seed is None or (p.seed is not None and not p.done)
        stateful = self._stateful_sampler()
        sampler = None if stateful is None else p.sampler if p.sampler is not None else stateful.state_dict()
        return LoaderState(
            seed=self.seed if p.done or not drawn else p.seed,
            drawn=drawn,
            epoch=p.epoch + p.done,
            batch=0 if p.done else p.batch,
            num_items=self._num_items,
            batch_size=self.batch_size,
            shuffle=self._shuffle,
            drop_last=self.drop_last,
            loader=brief(self._shape()),
            sampler=sampler,
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands, counted in batches received: those made ahead do not count.

        Where ranks share the batches, those of all ranks: all of them have to have received the same number.
        """
        return self._state().to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was called: the next ``iter(loader)`` hands out the rest of that epoch.

        A sampler of the user that has no ``state_dict`` of its own is iterated anew, and its first batches are dropped:
        it must give the same order again (``set_epoch``, ``torch.manual_seed``).

        Raises:
            StateError: the state is damaged, or of a loader with another graph, sampler, other seeds, batches or order.
            InputError: the ranks cannot share the rest of the epoch evenly, with ``uneven="error"``.
            RankError: other ranks, which have to load the state as well, load another one, or not in time.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self._state(), len(self._plan()) if self._own_order else self._length())
        if self._ranks is not None:
            self._deal(loaded.batch)
            self._ranks.agree_on_state(loaded)
        if not loaded.drawn:
            self.seed = loaded.seed
        drawn = loaded.seed if loaded.drawn else None
        self._progress = Progress(epoch=loaded.epoch, seed=drawn, first=loaded.batch, sampler=loaded.sampler)

    def __len__(self) -> int:
        """Batches of an epoch that this rank gets."""
        if self._ranks is not None:
            return len(self._deal(0))
        length: int = super().__len__()  # type: ignore[misc]  # of the framework's loader
        return length

    def _length(self) -> int | None:
        """Batches of an epoch; ``None``: nobody knows."""
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    # What the loader that this is a part of defines.

    def _shape(self) -> dict[str, Any]:
        """What the samples of this loader depend on: name -> values and tensors."""
        raise NotImplementedError

    def _plan(self, seed: int = 0) -> Any:
        raise NotImplementedError

    def _deal(self, first: int) -> Any:
        raise NotImplementedError
