"""The random numbers of the contract inside compiled code, and the shuffle of an epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.random import _M1, _M2, GAMMA
from manyhop.system.numba_kernels import helper, kernel, u64

_U1, _U11, _U27, _U30, _U31, _U32 = (np.uint64(x) for x in (1, 11, 27, 30, 31, 32))
_LOW = np.uint64(0xFFFFFFFF)


@helper
def mix(z: np.uint64) -> np.uint64:
    """Return the finaliser of splitmix64."""
    z = (z ^ (z >> _U30)) * _M1
    z = (z ^ (z >> _U27)) * _M2
    return z ^ (z >> _U31)


@helper
def fold(key: np.uint64, x: np.uint64) -> np.uint64:
    """Derive a key from a key and a number."""
    return mix(key + GAMMA * (x + _U1))


@helper
def draw(key: np.uint64, j: np.uint64) -> np.uint64:
    """Return the j-th random number of a key."""
    return mix(key + GAMMA * (j + _U1))


@helper
def below(r: np.uint64, n: np.uint64) -> np.uint64:
    """Return an integer in [0, n), for n < 2^32."""
    return ((r >> _U32) * n + (((r & _LOW) * n) >> _U32)) >> _U32


@helper
def below_with_fraction(r: np.uint64, n: np.uint64) -> np.uint64:
    """Return the integer of ``below`` in the upper half, the 32 bits that follow in the lower half."""
    return (r >> _U32) * n + (((r & _LOW) * n) >> _U32)


@helper
def unit(r: np.uint64) -> float:
    """Return a float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(r >> _U11)) * 2.0**-53  # of signed numbers processors make floats at once


_U0, _U1, _U2, _U8 = (np.uint64(x) for x in (0, 1, 2, 8))
_CHUNK = np.uint64(256)  # numbers per round: a single one would wait for its products


@helper
def _pass(x: npt.NDArray[np.uint64], key: int, low_bits: int, high_bits: int, rounds: int) -> None:
    """Apply all rounds to all numbers."""
    low_mask, high_mask = (_U1 << low_bits) - _U1, (_U1 << high_bits) - _U1
    for turn in range(rounds):
        round_key = draw(key, turn)  # type: ignore[arg-type]  # these are uint64, too
        if turn & _U1 == _U0:
            for i in range(x.size):
                x[i] ^= mix(round_key + (x[i] >> low_bits)) & low_mask
        else:
            for i in range(x.size):
                x[i] ^= (mix(round_key + (x[i] & low_mask)) & high_mask) << low_bits


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def permute_positions(
    address: int, count: int, n: int, key: int, low_bits: int, high_bits: int, rounds: int, swap: int
) -> None:
    """Replace ``[count] uint64`` positions below ``n`` at an address by their images.

    Args:
        address, count: of the positions.
        n: number of elements.
        key: names the permutation.
        low_bits, high_bits: width of the two halves of a number.
        rounds: of a pass.
        swap: 1 to swap the results 0 and 1, otherwise 0.
    """
    for begin in range(_U0, count, _CHUNK):
        x = u64(address + _U8 * begin, min(_CHUNK, count - begin))  # type: ignore[arg-type]  # all are uint64
        _pass(x, key, low_bits, high_bits, rounds)
        for i in range(x.size):
            while x[i] >= n:
                _pass(x[i : i + 1], key, low_bits, high_bits, rounds)
            if x[i] < _U2:
                x[i] ^= swap
