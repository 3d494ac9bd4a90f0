"""``pad="auto"``: batches of fixed sizes; without their padding, they are the batches without it."""

import pickle

import pytest
import torch
from harness import SEEDS

pytestmark = pytest.mark.without("toy")  # it pads nothing


def sizes(taken):
    return [len(part) for part in taken]


@pytest.mark.parametrize("gpu", [False, True])
def test_only_padding_is_added(harness, monkeypatch, gpu):
    plain = harness.loader()
    expected = [harness.take(batch) for batch in plain]
    if gpu:
        harness.on_gpu(monkeypatch)
    loader = harness.loader(pad="auto", num_workers=1)
    batches = list(loader)
    assert all(sizes(harness.take(batch)) == sizes(harness.take(batches[0])) for batch in batches)
    for batch, own in zip(batches, expected, strict=True):
        real, padded = harness.real(batch), harness.take(batch)
        assert real.ids() == own.ids()
        assert torch.equal(real.x, own.x)
        assert torch.count_nonzero(padded.x) == torch.count_nonzero(own.x)  # the other rows are zeros
    report, own = loader.stats(), plain.stats()
    assert report.pad_fit_rate == 1
    assert own.pad_fit_rate is None
    assert (report.seeds, report.nodes, report.edges) == (own.seeds, own.nodes, own.edges)


def test_sizes_are_those_of_the_arguments(harness):
    """They depend neither on threads nor on the seed, so they are the same after a restart."""
    first, other = harness.loader(pad="auto"), harness.loader(pad="auto", seed=9, num_workers=2)
    copied, state = pickle.loads(pickle.dumps(first)), first.state_dict()
    expected = [harness.take(batch) for batch in first]
    assert [sizes(harness.take(batch)) for batch in other] == [sizes(taken) for taken in expected]
    other.load_state_dict(state)
    for loader in (other, copied):
        assert harness.epoch(loader) == [taken.ids() for taken in expected]


def test_a_batch_of_given_seeds(harness):
    loader = harness.loader(pad="auto")
    usual = sizes(harness.take(next(iter(loader))))
    few, many = loader.batch(torch.tensor([5, 9])), harness.loader(pad="auto", batch_size=50)
    assert sizes(harness.take(few)) == usual
    assert harness.real(few).seeds.tolist() == [5, 9]
    assert harness.real(many.batch(SEEDS)).seeds.tolist() == SEEDS.tolist()


@pytest.mark.without("DGL")  # whose graphs are on the default device
def test_the_default_device_of_torch_changes_nothing(harness):
    loader = harness.loader(pad="auto", num_workers=0)
    expected = [harness.take(batch).ids() for batch in loader]
    loader.load_state_dict(harness.loader(pad="auto", num_workers=0).state_dict())
    with torch.device("meta"):  # stands for "cuda"
        again = list(loader)
    assert [harness.take(batch).ids() for batch in again] == expected


def test_no_seeds(harness):
    assert list(harness.loader(pad="auto", seeds=SEEDS[:0], shuffle=False)) == []
    assert list(harness.loader(pad="auto", batch_size=100, drop_last=True)) == []
