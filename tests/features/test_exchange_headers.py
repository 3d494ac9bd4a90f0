"""Headers of exchanges: what a rank learns from those of the others."""

import gc
import weakref

import pytest

from manyhop.errors import RankError
from manyhop.features.exchange.row_exchange import Status, compare_headers, make_headers


class Caught:
    """A local of the caller, which the frames of an error would keep."""


def fail():
    caught = Caught()
    headers = make_headers(Status.FAILED, (0, 3), 7, "ValueError: bad label", [0, 0])
    with pytest.raises(RankError, match=r"failed: ValueError: bad label"):
        compare_headers("features", headers, 1, (0, 3))
    return weakref.ref(caught)


def test_an_error_keeps_no_frames_of_its_callers():
    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
