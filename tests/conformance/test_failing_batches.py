"""What a function of the user raises takes the place of its batch, and names it."""

import threading
import weakref

import pytest
from pipeline_threads import collector_off, ours, wait_until  # noqa: F401  # a fixture

from manyhop.errors import InputError

pytestmark = pytest.mark.without("toy")  # it calls no functions


class BadSeedError(Exception):
    """A user's."""


def refuse_17(seeds):
    if 17 in seeds:
        raise BadSeedError("seventeen")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("gpu", [False, True])
def test_an_error_takes_the_place_of_its_batch(harness, monkeypatch, num_workers, gpu):
    if gpu:
        if harness.name == "DGL":
            pytest.skip("a GPU calls no samplers of the user")
        harness.on_gpu(monkeypatch)

    def loader():
        return harness.loader(shuffle=False, num_workers=num_workers, each=refuse_17)

    one, seeds = loader(), []
    batches = iter(one)
    with pytest.raises(BadSeedError, match="seventeen") as caught:
        seeds.extend(harness.take(batch).seeds.tolist() for batch in batches)
    assert caught.value.failed_batch == (0, 2)
    assert caught.traceback[-1].name == "refuse_17"
    assert any("batch 2 of epoch 0" in note for note in caught.value.__notes__)
    assert one.state_dict()["batch"] == 2  # the one that failed is not done
    seeds.append(harness.take(next(batches)).seeds.tolist())
    state = one.state_dict()
    assert state["batch"] == 4
    seeds.extend(harness.take(batch).seeds.tolist() for batch in batches)
    assert seeds == [list(range(i, min(i + 8, 50))) for i in range(0, 50, 8) if i != 16]
    again = loader()
    again.load_state_dict(state)
    assert [harness.take(batch).seeds.tolist() for batch in again] == seeds[3:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("gpu", [False, True])
def test_an_iteration_that_stops_is_no_end_of_the_epoch(harness, monkeypatch, num_workers, gpu):
    if gpu and harness.name != "DGL":
        harness.on_gpu(monkeypatch)
    loader = harness.loader(num_workers=num_workers, each=lambda seeds: next(iter(())))
    with pytest.raises(RuntimeError, match=r"(?s)got StopIteration.*batch 0 of epoch 0"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.without("GraphBolt")  # it shares batches in a process group only
def test_a_rank_that_shares_batches_does_not_go_on_alone(harness, num_workers):
    batches = iter(harness.loader(shuffle=False, num_workers=num_workers, each=refuse_17, **harness.sharing))
    next(batches), next(batches)
    with pytest.raises(BadSeedError):
        next(batches)
    for _ in range(2):
        with pytest.raises(InputError, match="after BadSeedError: seventeen"):
            next(batches)


def test_functions_run_in_threads(harness):
    names = set()
    list(harness.loader(num_workers=2, each=lambda seeds: names.add(threading.current_thread().name)))
    assert all(name.startswith("manyhop") for name in names)


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("end", ["epoch", "break", "error"])
def test_threads_end_with_the_iterator(harness, end):
    def fail(seeds):
        if failing:
            raise BadSeedError

    failing, kept = False, None
    iterator = iter(harness.loader(num_workers=2, batch_size=1, each=fail))
    try:
        next(iterator)
        if end == "epoch":
            for _ in iterator:
                pass
        failing = end == "error"
        while failing:
            next(iterator)
    except BadSeedError as error:
        kept = error  # in this frame, to which its traceback leads
    assert (kept is not None) == (end == "error")
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None
    assert wait_until(lambda: not ours(), 10)
