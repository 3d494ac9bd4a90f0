"""A restart in mid-epoch, with any number of ranks."""

import itertools
import json

import pytest
from rank_loaders import digest, homogeneous, one_process

from manyhop.errors import InputError, StateError


def restart_elsewhere(state):
    errors = []
    loader = homogeneous(distributed=True, seed=5, uneven="error")
    loader.load_state_dict(state | {"batch": 2})
    errors.append(len(list(loader)))
    for wrong in (state | {"batch": 3}, state | {"batch": 9}):
        try:
            loader.load_state_dict(wrong)
        except (InputError, StateError) as error:
            errors.append(str(error))
    return errors


def test_states_that_do_not_fit(launcher):
    state = homogeneous(seed=5).state_dict()
    for rounds, uneven, too_many in launcher.run(restart_elsewhere, state):
        assert rounds == 3
        assert "2 ranks can share evenly" in uneven
        assert "at most 8 batches" in too_many


@pytest.mark.parametrize("distributed", [False, True])
def test_states_of_the_two_kinds_are_the_same(distributed):
    """A run of one process may go on as one of several, and the other way round."""
    one, other = homogeneous(seed=5, distributed=distributed), homogeneous(seed=0, distributed=not distributed)
    done = [digest(batch) for batch in itertools.islice(one, 3)]
    other.load_state_dict(one.state_dict())
    assert done + [digest(batch) for batch in other] == one_process("homogeneous")[0]


def test_a_drawn_seed_goes_on_where_ranks_share_batches():
    """The epoch is that of the loader that saved; the next one has the seed that the ranks agree on."""
    one, other = homogeneous(seed=None), homogeneous(seed=5, distributed=True)
    epoch = iter(one)
    next(epoch)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [digest(batch) for batch in other] == [digest(batch) for batch in epoch]
    assert [digest(batch) for batch in other] == one_process("homogeneous", 2)[1]
