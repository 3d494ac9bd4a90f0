"""A restart in mid-epoch, with any number of ranks."""

import itertools
import json
import os
import random
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from rank_loaders import digest, homogeneous, one_process, padding

import manyhop
from manyhop.errors import InputError, StateError

WORLDS = (1, 2, 3, 4)


def log_batches(folder, state):
    """Train for ever, as users do: rank 0 saves the state after a round that all ranks have done."""
    rank = manyhop.init().rank
    loader = homogeneous(distributed=True, seed=5, num_workers=1)
    if state is not None:
        loader.load_state_dict(state)
    with open(Path(folder, f"log.{rank}"), "a") as log:
        for _ in range(2):
            for batch in loader:
                log.write(json.dumps([loader.epoch, digest(batch), padding(batch)]) + "\n")
                log.flush()
                if dist.is_initialized():
                    dist.barrier()
                if rank == 0:
                    new = Path(folder, "state.new")
                    new.write_text(json.dumps(loader.state_dict() | {"rounds": log_length(folder, 0)}))
                    os.replace(new, Path(folder, "state"))
                    print("saved")
                time.sleep(0.01)


def log_length(folder, rank):
    return len(Path(folder, f"log.{rank}").read_text().splitlines())


def test_killed_at_random_points(launcher, tmp_path):
    """Two restarts with other numbers of ranks, after kill -9 of all ranks; two epochs are complete in the end."""
    rng = random.Random(4)  # of where it is killed: the schedule of the ranks is another one in each run
    for turn in range(2):
        worlds = [rng.choice(WORLDS[1:]) for _ in range(3)]
        kills = [rng.uniform(0, 0.15) for _ in range(2)]
        done, state = [], None
        for part, world_size in enumerate(worlds):
            folder = tmp_path / f"{turn}.{part}"
            folder.mkdir()
            ranks = launcher.start(log_batches, str(folder), state, world_size=world_size)
            if part < 2:
                ranks.wait_for_output(0, "saved")
                time.sleep(kills[part])
                for rank in range(world_size):
                    ranks.kill(rank)
                ranks.wait()
                saved = json.loads((folder / "state").read_text())
                rounds, state = saved.pop("rounds"), saved
            else:
                assert [result.exit_code for result in ranks.wait()] == [0] * world_size
                rounds = None
            for rank in range(world_size):
                lines = [json.loads(line) for line in (folder / f"log.{rank}").read_text().splitlines()[:rounds]]
                assert rounds in (None, len(lines))
                done += [(epoch, batch) for epoch, batch, is_padding in lines if not is_padding]
            if rounds is not None and state["epoch"] == 2:
                break
        expected = one_process("homogeneous", 3)
        for epoch in (0, 1):
            assert sorted(b for e, b in done if e == epoch) == sorted(expected[epoch]), (worlds, kills)


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
