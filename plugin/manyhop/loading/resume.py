"""Loaders that continue where they were: what they save, and what they do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from manyhop.errors import StateError
from manyhop.loading.facts import brief
from manyhop.loading.iterator import Progress
from manyhop.loading.ranks import Ranks
from manyhop.sampling.contract import CONTRACT_VERSION


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
            self._schedule(loaded.batch)
            facts = {name: getattr(loaded, name) for name in ("seed", "drawn", "epoch", "batch")}
            self._ranks.agree("load_state_dict()", facts)
        if not loaded.drawn:
            self.seed = loaded.seed
        drawn = loaded.seed if loaded.drawn else None
        self._progress = Progress(epoch=loaded.epoch, seed=drawn, first=loaded.batch, sampler=loaded.sampler)

    def __len__(self) -> int:
        """Batches of an epoch that this rank gets."""
        if self._ranks is not None:
            return len(self._schedule(0))
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

    def _schedule(self, first: int) -> Any:
        raise NotImplementedError


STATE_VERSION = 2

_OPTIONAL = {"seed", "sampler"}


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """Where a loader stands, and enough about it to notice that it is another loader.

    ``batch`` counts what the user has received, never what is made ahead: a loader that goes on from here delivers each
    batch of the epoch exactly once. An epoch that has been delivered wholly is ``batch=0`` of the next one.
    """

    seed: int | None
    """The loader's seed, or that drawn for the epoch; ``None``: the epoch has not begun, and will draw its own."""

    drawn: bool = False
    """Whether ``seed`` is of this epoch alone, drawn when it began, and the next epochs draw theirs."""

    epoch: int
    """The epoch to go on in, from 0."""

    batch: int
    """Batches of that epoch that the user has received: the index of the next one. Where ranks share the batches, those
    that all ranks together have received, so that another number of ranks can go on."""

    num_items: int
    """Number of seed nodes or seed edges."""

    batch_size: int | None
    """Seeds per batch; ``None`` where a batch sampler of the user decides."""

    shuffle: bool
    """Whether epochs are shuffled."""

    drop_last: bool
    """Whether a last batch that is not full is left out."""

    loader: dict[str, Any]
    """What the loader's samples depend on, in short: how they are drawn, of which graph, around which seeds."""

    sampler: Any = None
    """The ``state_dict()`` of a user's sampler, where it has one, as of the last batch received."""

    version: int = STATE_VERSION
    """Version of this format."""

    contract_version: int = CONTRACT_VERSION
    """Version of the sampling contract: another one would give other batches."""

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary of plain values (JSON can hold it, if it can hold the sampler's state)."""
        state = asdict(self)
        return {k: v for k, v in state.items() if v is not None or k not in _OPTIONAL}

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> LoaderState:
        """Read what :meth:`to_dict` wrote.

        Raises:
            StateError: for something else, or a state of another version.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(f"Expected what state_dict() of a loader gave, got {_brief(state)}. Pass that dictionary.")
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"Expected a loader state of version {STATE_VERSION}, got version {state['version']!r}. "
                "Use the release of manyhop that saved it."
            )
        known = {f.name for f in fields(LoaderState)}
        if unknown := sorted(set(state) - known):
            raise StateError(f"Expected the keys {sorted(known)}, got also {unknown}. It is not a loader's state.")
        begun = not state.get("drawn") or state.get("batch")  # else the epoch may be without a seed
        if missing := sorted(known - _OPTIONAL - set(state)) or (["seed"] if begun and "seed" not in state else []):
            raise StateError(f"Expected the keys {sorted(known)}, got none called {missing}. The state is incomplete.")
        for name in ("epoch", "batch"):
            if type(state[name]) is not int or state[name] < 0:
                raise StateError(f"Expected {name} to be a non-negative integer, got {state[name]!r}. It is damaged.")
        for name, kind in (("seed", int), ("drawn", bool)):
            if name in state and type(state[name]) is not kind:
                raise StateError(f"Expected {name} to be of type {kind.__name__}, got {state[name]!r}. It is damaged.")
        if not isinstance(state["loader"], Mapping):
            raise StateError(f"Expected loader to be a dictionary, got {state['loader']!r}. It is damaged.")
        return LoaderState(**{"seed": None, **state})

    def check(self, loader: LoaderState, num_batches: int | None = None) -> None:
        """Check that this saved state belongs to a loader.

        The seed is not compared: a loader takes it over from the state.

        Args:
            loader: the state of the loader it is loaded into.
            num_batches: batches in an epoch of that loader, those of all ranks; ``None`` where that is not known.

        Raises:
            StateError: naming the first difference.
        """
        for name in ("contract_version", "num_items", "batch_size", "shuffle", "drop_last"):
            saved, own = getattr(self, name), getattr(loader, name)
            if saved != own:
                raise StateError(
                    f"Expected a state with {name}={own!r}, as this loader has, got {name}={saved!r}. "
                    + (
                        "Its batches would be others: use the release of manyhop that saved it."
                        if name == "contract_version"
                        else "Make the loader like the one that saved the state."
                    )
                )
        for name, saved, own in _differences(self.loader, loader.loader):
            raise StateError(
                f"Expected a state of a loader with {name}: {own}, as this one has, got {saved}. "
                "Make the loader as the one that saved the state."
            )
        if (self.sampler is None) != (loader.sampler is None):
            words = ("without", "with") if self.sampler is None else ("with", "without")
            raise StateError(
                f"Expected a state {words[1]} the state of a sampler, got one {words[0]}. "
                "Make the loader with the same sampler."
            )
        if num_batches is not None and self.batch > num_batches:
            raise StateError(f"Expected at most {num_batches} batches in an epoch, got {self.batch}. It is damaged.")


def _differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Names of what differs, in the order of the loader's own, and both values."""
    for name in dict.fromkeys([*own, *saved]):
        one, other = saved.get(name), own.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from ((f"{name}, {part}", a, b) for part, a, b in _differences(one, other))
        elif one != other:
            yield name, "nothing" if one is None else one, "nothing" if other is None else other


def _brief(x: object) -> str:
    return f"a {type(x).__name__}" + (f" with the keys {sorted(map(str, x))[:5]}" if isinstance(x, Mapping) else "")
