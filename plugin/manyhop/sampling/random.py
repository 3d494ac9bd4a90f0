"""Counter-based random numbers: every draw is a function of a key and a counter, never of a state.

``mix`` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). All
functions take and return numpy ``uint64`` scalars or arrays and wrap modulo 2^64; the CPU and GPU kernels repeat them
operation by operation.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = np.uint64 | npt.NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_GAMMA, *_FACTORS = map(int, (GAMMA, _M1, _M2))


class Use(IntEnum):
    """Use of a key: its first component, so that different uses never share draws."""

    NEIGHBOR = 0
    SHUFFLE = 1
    NEGATIVE_SRC = 2
    NEGATIVE_DST = 3
    HGT_BUDGET = 4
    HGT_PICK = 5
    LABOR = 6
    CALL = 7
    RANK = 8
    HGT_EDGES = 9
    EMBEDDING = 10
    WALK = 11
    SAINT = 12


def as_u64(x: int | npt.ArrayLike) -> U64:
    """Reduce integers of any sign and size to their low 64 bits."""
    if isinstance(x, int):
        return np.uint64(x & _MASK)
    return np.asarray(x).astype(np.uint64)


def mix(z: U64) -> U64:
    """Return the finaliser of splitmix64: a bijection of 64-bit numbers that scrambles them."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * _M1
        z = (z ^ (z >> np.uint64(27))) * _M2
        return z ^ (z >> np.uint64(31))


def fold(key: U64, x: int | npt.ArrayLike) -> U64:
    """Derive a key from a key and a number."""
    with np.errstate(over="ignore"):
        return mix(key + GAMMA * (as_u64(x) + np.uint64(1)))


def make_key(use: Use, *parts: int) -> np.uint64:
    """Return the key of a use and a row of numbers: folds them from left to right, starting with ``use``.

    Batches take several keys, and Python's integers a seventh of the time of numpy's scalars: this is :func:`fold` of
    those.
    """
    key = 0
    for part in (use, *parts):
        z = (key + _GAMMA * ((int(part) & _MASK) + 1)) & _MASK
        z = ((z ^ z >> 30) * _FACTORS[0]) & _MASK
        z = ((z ^ z >> 27) * _FACTORS[1]) & _MASK
        key = z ^ z >> 31
    return np.uint64(key)


def draw(key: U64, j: int | npt.ArrayLike) -> U64:
    """Return the j-th random number of a key (j = 0, 1, ...)."""
    with np.errstate(over="ignore"):
        return mix(key + GAMMA * (as_u64(j) + np.uint64(1)))


def below(r: U64, n: int | npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return ``floor(r * n / 2^64)``, an integer in [0, n). Exact for n < 2^32, from two 32-bit products."""
    n64, low, s = as_u64(n), np.uint64(0xFFFFFFFF), np.uint64(32)
    return np.asarray((((r >> s) * n64) + (((r & low) * n64) >> s)) >> s).astype(np.int64)


def below_with_fraction(r: np.uint64, n: int) -> tuple[int, int]:
    """Return ``floor(r * n / 2^32)``, split in two: ``below``, and the 32 bits that follow."""
    return divmod(int(r) * n >> 32, 1 << 32)


def unit(r: U64) -> npt.NDArray[np.float64]:
    """Return a float64 in [0, 1) with 53 random bits."""
    return np.asarray(r >> np.uint64(11)).astype(np.float64) * 2.0**-53
