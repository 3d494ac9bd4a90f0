"""The shuffle of an epoch, compiled: equal to ``manyhop.loading.pipeline.permute``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.random import draw, mix
from manyhop.system.numba_kernels import helper, kernel, u64

_U0, _U1, _U2, _U8 = (np.uint64(x) for x in (0, 1, 2, 8))
_CHUNK = np.uint64(256)  # numbers that go through a round one after the other: each alone would wait for its products


@helper
def _pass(x: npt.NDArray[np.uint64], key: int, low_bits: int, high_bits: int, rounds: int) -> None:
    """All rounds, for all numbers."""
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
        swap: 1 if the results 0 and 1 are to be swapped, else 0.
    """
    for begin in range(_U0, count, _CHUNK):
        x = u64(address + _U8 * begin, min(_CHUNK, count - begin))  # type: ignore[arg-type]  # all are uint64
        _pass(x, key, low_bits, high_bits, rounds)
        for i in range(x.size):
            while x[i] >= n:
                _pass(x[i : i + 1], key, low_bits, high_bits, rounds)
            if x[i] < _U2:
                x[i] ^= swap
