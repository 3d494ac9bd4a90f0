"""What loaders count and time."""

import copy

import pytest

from manyhop.errors import InputError


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.without("toy")  # it counts no seeds
def test_what_was_received(harness, monkeypatch, num_workers, gpu, tmp_path):
    """Not batches that were made ahead of a break, nor the first making of one that is made again."""
    if gpu:
        harness.on_gpu(monkeypatch)
    loader, received = harness.loader(num_workers=num_workers), []
    assert loader.stats().batches == 0
    for _ in range(2):
        iterator = iter(loader)
        state = loader.state_dict()
        received += [harness.take(next(iterator)) for _ in range(2)]
        iterator.close()
        loader.load_state_dict(state)
    report = loader.stats()
    assert (report.batches, report.seeds) == (4, 4 * 8)
    assert report.edges == sum(len(taken.e_id) for taken in received)
    assert report.nodes == sum(len(taken.n_id) for taken in received)
    if not gpu:  # where batches share what was gathered for several of them
        assert report.gathered_bytes == sum(taken.x.nbytes for taken in received)
    whole = [harness.take(batch) for batch in loader]
    for since in ("epoch", report):
        later = loader.stats(since=since)
        assert (later.batches, later.seeds, later.edges) == (7, 50, sum(len(taken.e_id) for taken in whole))
    assert copy.copy(loader).stats(since="epoch").batches in (0, 7)
    if not gpu:
        assert min(report.sample_s, report.gather_s, report.waited_s, report.step_s) > 0
        assert report.advice
        loader.timeline(tmp_path / "epoch.json")
        assert '"gather' in (tmp_path / "epoch.json").read_text()
    assert str(report).startswith("4 batches")


@pytest.mark.parametrize("since", ["batch", 3, {}])
def test_wrong_beginnings(harness, since):
    with pytest.raises(InputError, match=f'since="epoch" or an earlier report, got {since!r}'):
        harness.loader().stats(since=since)


def test_one_rank_is_left_to_accelerate_and_several_are_told_how_to_share(harness, monkeypatch):
    """Accelerate and Ray Train read it before they would split a loader over ranks."""
    loader = harness.loader()
    assert loader._is_accelerate_prepared
    assert len(list(loader)) == loader.stats().metrics()["manyhop/batches"] == 7
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=rf"in Accelerator\.prepare.* 2 ranks.*Pass .*{harness.shares_by}"):
        _ = harness.loader()._is_accelerate_prepared
