"""Saved states of loaders, to resume in the middle of an epoch."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from manyhop.errors import StateError
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.loading.facts import brief
from manyhop.loading.figures import Figures
from manyhop.loading.iterator import Progress
from manyhop.loading.pipeline import BatchPlan
from manyhop.loading.ranks import Ranks
from manyhop.sampling.contract import CONTRACT_VERSION


class Resumable(Figures):
    """The part of a loader that saves and restores its progress."""

    seed: int | None
    """The seed of all epochs; ``None``: each epoch draws one, which ``state_dict()`` contains."""

    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    _num_items: int
    _own_order: bool
    _progress: Progress
    _ranks: Ranks | None
    _shuffle: bool

    def _stateful_sampler(self) -> Any:
        """Return the user's sampler if it has a state."""
        if self._own_order:
            return None
        for sampler in (self.batch_sampler, self.sampler):
            if callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None)):
                return sampler
        return None

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, from 0; before the first one, the next epoch."""
        return self._progress.epoch

    def _state(self) -> dict[str, Any]:
        """Return the progress, and enough facts to recognise a different loader."""
        p = self._progress
        drawn = self.seed is None or (p.seed is not None and not p.done)
        stateful = self._stateful_sampler()
        sampler = None if stateful is None else p.sampler if p.sampler is not None else stateful.state_dict()
        return {
            "seed": self.seed if p.done or not drawn else p.seed,  # None: the epoch has not begun, and will draw one
            "drawn": drawn,  # the seed is of this epoch, and the next ones draw others
            "epoch": p.epoch + p.done,
            "batch": 0 if p.done else p.batch,  # of all ranks, so that another number of them can resume
            "num_items": self._num_items,
            "batch_size": self.batch_size,
            "shuffle": self._shuffle,
            "drop_last": self.drop_last,
            "loader": brief(self._shape()),
            "sampler": sampler,  # at the last batch received
            "version": STATE_VERSION,
            "contract_version": CONTRACT_VERSION,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the latest iteration, counted in batches received. Prefetched batches do not count.

        If ranks share the batches, the batches of all ranks count: call it after the same number on each. JSON can hold
        the state, if it can hold that of a user's sampler.
        """
        every = self._state().items()
        return {name: copy.deepcopy(value) for name, value in every if value is not None or name not in _OPTIONAL}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state: the next ``iter(loader)`` yields the rest of its epoch.

        A user's sampler without ``state_dict`` starts again, and its first batches are skipped. It must yield the same
        order again (``set_epoch``, ``torch.manual_seed``).

        Raises:
            StateError: the state is damaged, or belongs to a loader with a different graph, sampler, seeds, batches or
                order.
            InputError: the ranks cannot share the rest of the epoch evenly, with ``uneven="error"``.
            RankError: other ranks, which must load the same state, load a different one, or not in time.
        """
        loaded = read_state(state)
        check_state(loaded, self._state(), len(self._plan()) if self._own_order else self._length())
        if self._ranks is not None:
            self._schedule(loaded["batch"])
            facts = {name: loaded[name] for name in ("seed", "drawn", "epoch", "batch")}
            self._ranks.agree("load_state_dict()", facts)
        if not loaded["drawn"]:
            self.seed = loaded["seed"]
        drawn = loaded["seed"] if loaded["drawn"] else None
        self._progress = Progress(epoch=loaded["epoch"], seed=drawn, first=loaded["batch"], sampler=loaded["sampler"])

    def __len__(self) -> int:
        """Return the number of batches of an epoch for this rank."""
        if self._ranks is not None:
            return len(self._schedule(0))
        length: int = super().__len__()  # type: ignore[misc]  # of the framework's loader
        return length

    def _length(self) -> int | None:
        """Return the number of batches of an epoch; ``None``: unknown."""
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    # Defined by the loader.

    def _shape(self) -> dict[str, Any]:
        """Return the values and tensors that the samples depend on, by name."""
        raise NotImplementedError

    def _schedule(self, first: int) -> Any:
        raise NotImplementedError

    def _plan(self, seed: int = 0) -> BatchPlan:
        raise NotImplementedError


STATE_VERSION = 2
_OPTIONAL = {"seed", "sampler"}
_NAMES = {"seed", "drawn", "epoch", "batch", "num_items", "batch_size", "shuffle", "drop_last", "loader", "sampler"}
_NAMES |= {"version", "contract_version"}
_REMEDY = "Create the loader like the one that saved the state."


def read_state(state: object) -> dict[str, Any]:
    """Return the values of a ``state_dict()``, also those that are ``None``.

    Raises:
        StateError: not such a dictionary, or a state of a different version.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(f"Expected a state_dict() of a loader, got {_brief(state)}. Pass that dictionary.")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"Expected a loader state of version {STATE_VERSION}, got version {state['version']!r}. "
            "Use the release of manyhop that saved it."
        )
    if unknown := sorted(set(state) - _NAMES):
        raise StateError(f"Expected the keys {sorted(_NAMES)}, got also {unknown}. It is not a loader's state.")
    begun = not state.get("drawn") or state.get("batch")  # else the epoch may be without a seed
    if missing := sorted(_NAMES - _OPTIONAL - set(state)) or (["seed"] if begun and "seed" not in state else []):
        raise StateError(f"Expected the keys {sorted(_NAMES)}, got none called {missing}. The state is incomplete.")
    for name, kind in {"epoch": int, "batch": int, "seed": int, "drawn": bool, "loader": Mapping}.items():
        value, counts = state.get(name), name in ("epoch", "batch")
        right = isinstance(value, kind) and (kind is bool) == (type(value) is bool)
        if name in state and (not right or (counts and state[name] < 0)):
            least = ", at least 0" if counts else ""
            raise StateError(f"Expected {name} to be of type {kind.__name__}{least}, got {value!r}. It is damaged.")
    return dict.fromkeys(_OPTIONAL) | dict(state)


def check_state(saved: Mapping[str, Any], own: Mapping[str, Any], num_batches: int | None = None) -> None:
    """Check that a saved state belongs to a loader, which adopts its seed.

    Args:
        saved: the saved state.
        own: state of the loader that resumes.
        num_batches: batches of all ranks in an epoch of that loader; ``None``: unknown.

    Raises:
        StateError: naming the first difference.
    """
    for name in ("contract_version", "num_items", "batch_size", "shuffle", "drop_last"):
        if saved[name] != own[name]:
            form = "{} seeds" if name == "num_items" else name + "={!r}"
            remedy = "Its batches would be others: use the release of manyhop that saved it."
            raise StateError(
                f"Expected a state with {form.format(own[name])}, as this loader has, got {form.format(saved[name])}. "
                + (remedy if name == "contract_version" else _REMEDY)
            )
    for name, one, other in _differences(saved["loader"], own["loader"]):
        one, other = (re.sub(r"(, )?checksum \w{8}", "", str(value)) for value in (one, other))
        if one == other:
            raise StateError(f"Expected a state of a loader with the {name} of this one, got others. {_REMEDY}")
        raise StateError(f"Expected a state of a loader with {name}: {other}, as this one has, got {one}. {_REMEDY}")
    if (saved["sampler"] is None) != (own["sampler"] is None):
        words = ("without", "with") if saved["sampler"] is None else ("with", "without")
        raise StateError(
            f"Expected a state {words[1]} the state of a sampler, got one {words[0]}. Create the loader with the same "
            "sampler."
        )
    if num_batches is not None and saved["batch"] > num_batches:
        raise StateError(f"Expected at most {num_batches} batches in an epoch, got {saved['batch']}. It is damaged.")


def _differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of differences, in the order of the loader's facts."""
    for name in dict.fromkeys([*own, *saved]):
        one, other = saved.get(name), own.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for part, a, b in _differences(one, other):
                yield name if part == str(HOMOGENEOUS_EDGE) else f"{name}, {part}", a, b
        elif one != other:
            yield name, "nothing" if one is None else one, "nothing" if other is None else other


def _brief(x: object) -> str:
    return f"a {type(x).__name__}" + (f" with the keys {sorted(map(str, x))[:5]}" if isinstance(x, Mapping) else "")
