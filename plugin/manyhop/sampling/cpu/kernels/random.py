"""The random numbers of the contract inside compiled code; the same operations as in ``manyhop.sampling.random``."""

from __future__ import annotations

import numpy as np

from manyhop.sampling.random import _M1, _M2, GAMMA
from manyhop.system.numba_kernels import helper

_U1, _U11, _U27, _U30, _U31, _U32 = (np.uint64(x) for x in (1, 11, 27, 30, 31, 32))
_LOW = np.uint64(0xFFFFFFFF)


@helper
def mix(z: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> _U30)) * _M1
    z = (z ^ (z >> _U27)) * _M2
    return z ^ (z >> _U31)


@helper
def fold(key: np.uint64, x: np.uint64) -> np.uint64:
    """Derive a key from a key and a number."""
    return mix(key + GAMMA * (x + _U1))


@helper
def draw(key: np.uint64, j: np.uint64) -> np.uint64:
    """The j-th random number of a key."""
    return mix(key + GAMMA * (j + _U1))


@helper
def below(r: np.uint64, n: np.uint64) -> np.uint64:
    """An integer in [0, n), for n < 2^32."""
    return ((r >> _U32) * n + (((r & _LOW) * n) >> _U32)) >> _U32


@helper
def below_with_fraction(r: np.uint64, n: np.uint64) -> np.uint64:
    """The integer of ``below`` in the upper half, the 32 bits that follow in the lower half."""
    return (r >> _U32) * n + (((r & _LOW) * n) >> _U32)


@helper
def unit(r: np.uint64) -> float:
    """A float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(r >> _U11)) * 2.0**-53  # of signed numbers processors make floats at once
