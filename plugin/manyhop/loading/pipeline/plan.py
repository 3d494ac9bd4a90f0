"""The plan of an epoch: items of each batch, a pure function of (seed, epoch, batch), and batches of each rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from manyhop.errors import InputError
from manyhop.loading.pipeline.parts import ItemParts, assign_ranks
from manyhop.sampling.random import U64, Use, below, draw, fold, make_key

_MAX_ITEMS = 1 << 40
_SWAP = 1 << 32  # counter of the draw that decides the last swap; rounds use 0, 1, 2, ...


def permute(i: npt.ArrayLike, n: int, key: U64) -> npt.NDArray[np.int64]:
    """Look up positions of a keyed pseudorandom permutation of ``[0, n)``, without building it.

    The permutation is a Feistel network on ``b = max(1, ceil(log2(n)))`` bits. The low ``b // 2`` bits ``L`` and the
    others ``R`` alternate: ``L ^= F(R)`` in even rounds and ``R ^= F(L)`` in odd ones, where ``F(x) = mix(draw(key,
    round) + x)`` is cut to the bits of the result. Results of ``n`` or more are permuted again until they are smaller
    (cycle walking). Such a network of more than three bits yields only even permutations, so a last keyed bit swaps the
    results 0 and 1.

    Args:
        i: ``[k] int64`` positions in ``[0, n)``.
        n: number of elements, at most 2^40.
        key: key of the permutation; one, or ``[k] uint64``, one for each position.

    Returns:
        ``[k] int64``: the images of ``i``.
    """
    bits = max(1, (n - 1).bit_length())
    out = np.array(i, dtype=np.uint64, ndmin=1)
    rounds = np.arange(_num_rounds(bits))[:, None]
    keys = np.broadcast_to(np.asarray(draw(key, rounds), dtype=np.uint64), (len(rounds), out.size))
    bound = np.uint64(n)
    _feistel(out, bits, keys)
    outside = np.flatnonzero(out >= bound)
    while outside.size:
        again = out[outside]
        _feistel(again, bits, keys[:, outside])
        out[outside] = again
        outside = outside[again >= bound]
    if n >= 2:
        out ^= (draw(key, _SWAP) >> np.uint64(63)) * (out < np.uint64(2))
    return out.view(np.int64)


def _num_rounds(bits: int) -> int:
    """Return the rounds of the network: narrow halves mix little, and few elements show a small bias."""
    return 64 if bits <= 3 else 16 if bits <= 12 else 8


def _feistel(x: npt.NDArray[np.uint64], bits: int, keys: npt.NDArray[np.uint64]) -> None:
    """Run one pass of the network over ``x [k] uint64``, in place, with ``keys [rounds, k]``."""
    low = np.uint64(bits // 2)
    masks = ((np.uint64(1) << low) - np.uint64(1), (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1))
    halves = (x & masks[0], x >> low)
    f, shifted = np.empty_like(x), np.empty_like(x)
    for turn, key in enumerate(keys):
        side = turn & 1
        np.add(halves[1 - side], key, out=f)
        _mix_inplace(f, shifted)
        f &= masks[side]
        np.bitwise_xor(halves[side], f, out=halves[side])
    np.left_shift(halves[1], low, out=x)
    x |= halves[0]


def _mix_inplace(z: npt.NDArray[np.uint64], t: npt.NDArray[np.uint64]) -> None:
    """Compute ``z = mix(z)`` without allocations, once per round; array arithmetic wraps without warnings."""
    np.right_shift(z, np.uint64(30), out=t)
    z ^= t
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=t)
    z ^= t
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t


class Network(NamedTuple):
    """Parameters of an epoch's permutation, for compiled code."""

    key: int
    """64 bits, as a signed integer."""

    low_bits: int
    high_bits: int
    rounds: int
    swap: int
    """1 if the results 0 and 1 are swapped, otherwise 0."""


@functools.lru_cache(64)
def network(plan: BatchPlan, epoch: int) -> Network:
    """Return the network of ``permute`` for the items of an epoch."""
    return _network(make_key(Use.SHUFFLE, plan.seed, epoch), plan.num_items)


def _network(key: np.uint64, n: int) -> Network:
    bits = max(1, (n - 1).bit_length())
    swap = int(draw(key, _SWAP)) >> 63 if n >= 2 else 0
    return Network(int(key.view(np.int64)), bits // 2, bits - bits // 2, _num_rounds(bits), swap)


@dataclass(frozen=True)
class BatchPlan:
    """Cuts the positions ``0 .. num_items - 1``, in order or shuffled in each epoch, into batches.

    A pure function with random access: any batch of any epoch may be requested, in any order, from any thread.

    Raises:
        InputError: a ``batch_size`` that is not a positive integer, or a ``num_items`` out of range.
    """

    num_items: int
    """Number of items (seed nodes or seed edges)."""

    batch_size: int
    """Items per batch; the last batch may have fewer."""

    shuffle: bool = False
    """Permute the items, as a function of ``(seed, epoch)``."""

    drop_last: bool = False
    """Drop an incomplete last batch."""

    seed: int = 0
    """The user's seed, any integer."""

    parts: ItemParts | None = None
    """The parts of the items, if each batch has items of one part."""

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(f"Expected batch_size to be an integer of at least 1, got {self.batch_size!r}. Pass one.")
        if not 0 <= self.num_items <= _MAX_ITEMS:
            raise InputError(f"Expected between 0 and 2^40 items, got {self.num_items}. Split the input.")

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        if self.drop_last:
            return self.num_items // self.batch_size
        return -(-self.num_items // self.batch_size)

    def indices(self, epoch: int, batch: int) -> npt.NDArray[np.int64]:
        """Return the positions of the items of one batch.

        Args:
            epoch: the epoch, from 0.
            batch: the index of the batch in its epoch, from 0.

        Returns:
            ``[batch_size] int64`` positions in ``[0, num_items)``; fewer in an incomplete last batch.

        Raises:
            InputError: no such batch.
        """
        return self.many_indices(epoch, (batch,))[0]

    def many_indices(self, epoch: int, batches: Sequence[int]) -> list[npt.NDArray[np.int64]]:
        """Return :meth:`indices` of some batches, at once: as cheap for thousands of positions as for a few.

        Raises:
            InputError: no such batch.
        """
        if self.parts is not None:
            return self._by_part(self.parts, epoch, batches, _permute_compiled)
        positions = [self.in_order(batch) for batch in batches]
        if not self.shuffle or not positions:
            return positions
        shuffled = np.concatenate(positions)
        _permute_in_place(shuffled, self.num_items, network(self, epoch))
        return np.split(shuffled, np.cumsum([len(p) for p in positions[:-1]]))

    def few_indices(self, epoch: int, batch: int) -> npt.NDArray[np.int64]:
        """Return :meth:`indices` without compiled code: slower, but a GPU's loader need not import numba.

        Raises:
            InputError: no such batch.
        """
        if self.parts is not None:
            return self._by_part(self.parts, epoch, (batch,), permute)[0]
        positions = self.in_order(batch)
        return (
            permute(positions, self.num_items, make_key(Use.SHUFFLE, self.seed, epoch)) if self.shuffle else positions
        )

    def _by_part(
        self, parts: ItemParts, epoch: int, batches: Sequence[int], permutation: _Permutation
    ) -> list[npt.NDArray[np.int64]]:
        """Return the positions of batches with items of one part each; each part has a separate permutation."""
        key = make_key(Use.SHUFFLE, self.seed, epoch)
        rotation = int(below(draw(fold(key, parts.num_parts), 0), parts.num_parts)) if self.shuffle else 0
        found = []
        by_part: dict[int, list[npt.NDArray[np.int64]]] = {}
        for batch in batches:
            self._check(batch)
            pieces = parts.pieces(batch, rotation)
            found.append([np.arange(piece.begin, piece.end) for piece in pieces])
            for piece, places in zip(pieces, found[-1], strict=True):
                by_part.setdefault(piece.part, []).append(places)
        for part, several in by_part.items():
            places = np.concatenate(several)
            if self.shuffle:
                places = permutation(places, parts.sizes[part], np.uint64(fold(key, part)))
            begin, items = 0, parts.items(part, places)
            for some in several:
                some[:] = items[begin : begin + len(some)]
                begin += len(some)
        return [np.concatenate(several) for several in found]

    def _check(self, batch: int) -> None:
        if not 0 <= batch < len(self):
            raise InputError(f"Expected a batch from 0 to {len(self) - 1}, got {batch}. An epoch has no more.")

    def in_order(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the positions of the items of one batch without shuffling and parts.

        Raises:
            InputError: no such batch.
        """
        self._check(batch)
        first = batch * self.batch_size
        return np.arange(first, min(first + self.batch_size, self.num_items), dtype=np.int64)


_Permutation: TypeAlias = Callable[[npt.NDArray[np.int64], int, np.uint64], npt.NDArray[np.int64]]


def _permute_compiled(positions: npt.NDArray[np.int64], n: int, key: np.uint64) -> npt.NDArray[np.int64]:
    """Return :func:`permute` of ``positions``, which are overwritten."""
    _permute_in_place(positions, n, _network(key, n))
    return positions


def _permute_in_place(positions: npt.NDArray[np.int64], n: int, network: Network) -> None:
    # Compiled: positions of a batch take longer than its sampling without that.
    from manyhop.sampling.cpu.kernels.random import permute_positions

    key, *shape = network
    permute_positions(positions.ctypes.data, len(positions), n, key & (1 << 64) - 1, *shape)


Uneven: TypeAlias = Literal["pad", "drop", "error"]
"""Policy if ranks cannot share the batches evenly: repeat batches, drop batches, or raise an error."""

UnevenRule: TypeAlias = Uneven | Literal["keep"]
"""The same, or GraphBolt's policy: only the first ranks have a batch in the last round."""


@dataclass(slots=True)
class RankBatch:
    """One batch of one rank, in one iteration."""

    round: int
    """Number of this batch on its rank, from 0: in each round every rank gets one."""

    batch: int
    """Global index of the batch in its epoch, from 0."""

    is_padding: bool = False
    """Whether the batch repeats one of another rank or an earlier round."""

    contents: dict[str, int] = field(default_factory=dict, compare=False)
    """Seeds, nodes, edges and bytes, as arguments of ``Stats.count``, complete when the batch is returned."""


@dataclass(frozen=True, kw_only=True)
class RankSchedule:
    """Distributes the global batches ``first .. num_batches - 1`` of an epoch over ranks, round by round.

    Rank ``r`` of ``W`` gets batches ``first + r``, ``first + r + W``, and so on; all ranks get the same number. An
    incomplete last round is filled with batches from the beginning of the epoch (``"pad"``), dropped (``"drop"``), or
    left to the first ranks (``"keep"``). With ``parts``, rounds have the same batches, but in a full round, ranks get
    batches that are local to them, if possible.

    Raises:
        InputError: numbers out of range, an unknown ``uneven``, or ``"error"`` with an incomplete last round.
    """

    num_batches: int
    """Global batches of the whole epoch."""

    world_size: int = 1
    """Number of ranks."""

    rank: int = 0
    """The rank of the schedule."""

    first: int = 0
    """Global batches that are already done (above 0 after a restart within an epoch)."""

    uneven: UnevenRule = "pad"
    """Policy for an incomplete last round."""

    parts: ItemParts | None = None
    """The parts of the items, if each batch has items of one part."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"Expected a rank in [0, {self.world_size}), got {self.rank}. Pass another.")
        if not 0 <= self.first <= self.num_batches:
            raise InputError(
                f"Expected to begin at 0 to {self.num_batches} batches, got {self.first}. There are no more."
            )
        if self.uneven not in ("keep", *get_args(Uneven)):
            raise InputError(
                f"Expected uneven to be one of {get_args(Uneven)}, got {self.uneven!r}. Choose one of them."
            )
        left = self.num_batches - self.first
        if self.uneven == "error" and left % self.world_size:
            raise InputError(
                f"Expected batches that {self.world_size} ranks can share evenly (uneven='error'), got {left}. Choose "
                "another batch_size or number of ranks, or uneven='pad' or 'drop'."
            )

    def __len__(self) -> int:
        """Return the number of rounds: batches per rank."""
        left = self.num_batches - self.first
        if self.uneven == "keep":
            return max(0, -(-(left - self.rank) // self.world_size))
        return left // self.world_size if self.uneven == "drop" else -(-left // self.world_size)

    def __iter__(self) -> Iterator[RankBatch]:
        """Return an iterator over the batches of this rank, in order."""
        return map(self.of_round, range(len(self)))

    def of_round(self, round: int) -> RankBatch:
        """Return the batch of this rank in one round."""
        begin = self.first + round * self.world_size
        seat = self.rank
        if self.parts is not None and begin + self.world_size <= self.num_batches:
            homes = self.parts.homes(begin, begin + self.world_size)
            seat = assign_ranks(homes, self.parts.num_parts).index(self.rank)
        place = begin + seat
        return RankBatch(round, place % self.num_batches, place >= self.num_batches)

    def after(self, rounds: int) -> int:
        """Return the number of global batches that are done after some rounds, those before ``first`` included."""
        return min(self.first + rounds * self.world_size, self.num_batches)
