"""Saved states of loaders."""

import json
from dataclasses import replace
from typing import Any

import pytest

from manyhop.errors import StateError
from manyhop.loading.resume import LoaderState

LOADER = {"sampler": "NeighborSampler", "specification": {"fanouts": [3, 2], "replace": False}, "input_nodes": "[9]"}
STATE = LoaderState(
    seed=-5, epoch=2, batch=17, num_items=1000, batch_size=32, shuffle=True, drop_last=False, loader=LOADER
)
DRAWN = replace(STATE, drawn=True)


@pytest.mark.parametrize(
    "state",
    [
        STATE,
        replace(STATE, sampler={"position": 3}),
        replace(STATE, batch_size=None),
        DRAWN,
        replace(DRAWN, seed=None, batch=0),
    ],
)
def test_round_trip_through_json(state: LoaderState) -> None:
    assert LoaderState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_what_a_loader_may_differ_in() -> None:
    STATE.check(replace(STATE, seed=1, epoch=0, batch=0), num_batches=32)


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
        replace(STATE, **change).check(STATE, num_batches=32)


def test_a_missing_sampler_is_named() -> None:
    with pytest.raises(StateError, match="Expected a state with the state of a sampler, got one without"):
        STATE.check(replace(STATE, sampler={}))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "a state_dict\\(\\) of a loader"),
        ([1], "got a list"),
        ({"epoch": 3, "step": 4}, "keys \\['epoch', 'step'\\]"),
        (STATE.to_dict() | {"version": 1}, "version 1"),
        (STATE.to_dict() | {"colour": 1}, "colour"),
        ({k: v for k, v in STATE.to_dict().items() if k != "epoch"}, "epoch"),
        (STATE.to_dict() | {"batch": -1}, "batch"),
        (STATE.to_dict() | {"epoch": "1"}, "epoch"),
        *((STATE.to_dict() | {"seed": seed}, "seed to be of type int") for seed in ("x", None, 1.5, True)),
        (STATE.to_dict() | {"loader": None}, "loader to be of type dict, got None"),
        (STATE.to_dict() | {"drawn": None}, "drawn to be of type bool"),
        ({k: v for k, v in STATE.to_dict().items() if k != "seed"}, "none called \\['seed'\\]"),
        ({k: v for k, v in STATE.to_dict().items() if k != "seed"} | {"drawn": True}, "none called \\['seed'\\]"),
    ],
)
def test_other_things_are_refused(state: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        LoaderState.from_dict(state)
