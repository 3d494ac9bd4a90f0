"""Exceptions of code that makes batches reach the caller as they are."""

import contextlib
import gc
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from pipeline_threads import wait_until

from manyhop.errors import InputError, RankError
from manyhop.loading.pipeline import Pipeline

WORKERS = [0, 2]
NOTE = "manyhop: while making batch 3 of epoch 7; to make it again: again()"


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class OddError(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")

    def __reduce__(self) -> tuple[Callable[[], "OddError"], tuple[()], dict[str, object]]:
        return make_odd, (), vars(self)


def make_odd() -> OddError:
    return OddError(3, reason="odd")


def noted() -> ValueError:
    error = ValueError("noted")
    error.add_note("of the user")
    return error


def failing(error: BaseException, bad: int = 3) -> Callable[[int, int], int]:
    def make(batch: int, item: int) -> int:
        if batch == bad:
            raise error
        return item

    return make


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (FrozenError(5), [NOTE]),
        (make_odd(), [NOTE]),
        (noted(), ["of the user", NOTE]),
        (UserWarning("a warning that is an error"), [NOTE]),
        (RankError("rank 1 is gone", ranks=(1,)), []),
        (KeyboardInterrupt(), []),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_exception_itself_is_raised(num_workers: int, error: BaseException, notes: list[str]) -> None:
    pipeline = Pipeline(range(9), failing(error), num_workers=num_workers, epoch=7, replay="again()")
    with contextlib.closing(pipeline), pytest.raises(type(error)) as caught:  # errors that others hold keep it
        list(pipeline)
    assert caught.value is error
    assert getattr(error, "__notes__", []) == notes
    assert getattr(error, "failed_batch", None) == ((7, 3) if notes else None)
    assert "raise error" in "".join(traceback.format_exception(error))
    if isinstance(error, OddError):
        assert pickle.loads(pickle.dumps(error)).__notes__ == notes


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_exception_that_is_raised_twice_has_the_last_note(num_workers: int) -> None:
    error = ValueError("again and again")
    for epoch in (6, 7):
        pipeline = Pipeline(range(9), failing(error), num_workers=num_workers, epoch=epoch, replay="again()")
        with contextlib.closing(pipeline), pytest.raises(ValueError, match="again and again"):
            list(pipeline)
    assert error.__notes__ == [NOTE]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("error", [RankError("rank 1 is gone", ranks=(1,)), KeyboardInterrupt()], ids=repr)
def test_an_error_with_no_next_batch_is_no_end_of_the_epoch(num_workers: int, error: BaseException) -> None:
    pipeline = Pipeline(range(9), failing(error), num_workers=num_workers)
    with pytest.raises(type(error)):
        list(pipeline)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"got one after {type(error).__name__}: {error}"):
            next(pipeline)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_items_that_fail_are_no_end_of_the_epoch(num_workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(2)
        raise KeyError("no more")

    pipeline, got = Pipeline(items(), lambda batch, item: item, num_workers=num_workers), []
    with pytest.raises(KeyError):
        got.extend(pipeline)
    with pytest.raises(InputError, match="got one after KeyError: 'no more'"):
        got.extend(pipeline)
    assert got == [0, 1]


def test_an_error_of_the_items_keeps_the_note_of_the_pipeline_that_gave_them() -> None:
    inner = Pipeline(range(9), failing(KeyError("nothing")), num_workers=1, epoch=7, replay="again()")
    with pytest.raises(KeyError) as caught:
        list(Pipeline(inner, lambda batch, item: item, num_workers=1, epoch=8, batch_of=lambda i, item: 10 * i))
    assert caught.value.__notes__ == [NOTE]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", [ValueError, StopIteration])
def test_what_was_made_lives_no_longer_than_the_exception(num_workers: int, kind: type[Exception]) -> None:
    class Payload:
        pass

    payloads: weakref.WeakSet[Payload] = weakref.WeakSet()

    def finish(batch: int, value: Payload) -> Payload:
        raise kind

    def make(batch: int, item: int) -> Payload:
        payload = Payload()
        payloads.add(payload)
        return payload

    def items() -> Iterator[int]:
        yield from range(5)

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError, RuntimeError):
            next(Pipeline(items(), make, num_workers=num_workers, finish=finish))
        assert wait_until(lambda: not payloads)
    finally:
        gc.enable()
