"""Saved states of loaders."""

import json
from collections import OrderedDict
from typing import Any

import pytest

from manyhop.errors import StateError
from manyhop.loading.resume import STATE_VERSION, check_state, read_state
from manyhop.sampling.contract import CONTRACT_VERSION

LOADER = {"sampler": "NeighborSampler", "specification": {"fanouts": [3, 2], "replace": False}, "input_nodes": "[9]"}
STATE = {
    "seed": -5, "drawn": False, "epoch": 2, "batch": 17, "num_items": 1000, "batch_size": 32, "shuffle": True,
    "drop_last": False, "loader": LOADER, "sampler": None, "version": STATE_VERSION,
    "contract_version": CONTRACT_VERSION,
}  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"sampler": {"position": 3}}, {"batch_size": None}, {"drawn": True}])
def test_round_trip_through_json(change: dict[str, Any]) -> None:
    state = json.loads(json.dumps(STATE | change))
    assert read_state(state) == STATE | change
    assert read_state({k: v for k, v in state.items() if k != "sampler" or v}) == STATE | change
    assert read_state(OrderedDict(state, loader=OrderedDict(LOADER))) == STATE | change


def test_a_seed_that_is_not_drawn_yet() -> None:
    state = {k: v for k, v in STATE.items() if k != "seed"} | {"drawn": True, "batch": 0}
    assert read_state(state)["seed"] is None


def test_what_a_loader_may_differ_in() -> None:
    check_state(STATE, STATE | {"seed": 1, "epoch": 0, "batch": 0}, num_batches=32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_items": 999}, "Expected a state with 1000 seeds, as this loader has, got 999 seeds"),
        ({"contract_version": 99}, "contract_version=99. Its batches would be others"),
        (
            {"loader": LOADER | {"input_nodes": "[8]"}},
            "a loader with input_nodes: \\[9\\], as this one has, got \\[8\\]",
        ),
        ({"loader": LOADER | {"labels": "[9]"}}, "a loader with labels: nothing, as this one has, got \\[9\\]"),
        ({"loader": {"sampler": "NeighborSampler"}}, "with specification: {.*got nothing"),
        (
            {"loader": LOADER | {"specification": {"fanouts": [3, 2], "replace": True}}},
            "with specification, replace: False, as this one has, got True",
        ),
        ({"sampler": {}}, "Expected a state without the state of a sampler, got one with"),
        ({"batch": 33}, "at most 32 batches"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        check_state(STATE | change, STATE, num_batches=32)


def test_a_missing_sampler_is_named() -> None:
    with pytest.raises(StateError, match="Expected a state with the state of a sampler, got one without"):
        check_state(STATE, STATE | {"sampler": {}})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "a state_dict\\(\\) of a loader"),
        ([1], "got a list"),
        ({"epoch": 3, "step": 4}, "keys \\['epoch', 'step'\\]"),
        (STATE | {"version": 1}, "version 1"),
        (STATE | {"colour": 1}, "colour"),
        ({k: v for k, v in STATE.items() if k != "epoch"}, "epoch"),
        (STATE | {"batch": -1}, "batch"),
        (STATE | {"epoch": "1"}, "epoch"),
        *((STATE | {"seed": seed}, "seed to be of type int") for seed in ("x", None, 1.5, True)),
        (STATE | {"loader": None}, "loader to be of type Mapping, got None"),
        (STATE | {"drawn": None}, "drawn to be of type bool"),
        ({k: v for k, v in STATE.items() if k != "seed"}, "none called \\['seed'\\]"),
        ({k: v for k, v in STATE.items() if k != "seed"} | {"drawn": True}, "none called \\['seed'\\]"),
    ],
)
def test_other_things_are_refused(state: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        read_state(state)
