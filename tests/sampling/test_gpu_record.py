"""What stands for CUDA graphs where CUDA refuses to record them."""

import logging

import pytest
import torch

from manyhop.errors import CapacityError, ManyhopError
from manyhop.sampling.gpu.launch import recording
from manyhop.sampling.gpu.launch.recording import record


def refuse(error, monkeypatch):
    def make(work, device):
        raise error

    monkeypatch.setattr(recording, "Recording", make)
    recording._say_once.cache_clear()


def test_kernels_are_enqueued_one_by_one(monkeypatch, caplog):
    refuse(ManyhopError("CUDA could not begin to record: ERROR (801)."), monkeypatch)
    enqueued = []
    with caplog.at_level(logging.WARNING, "manyhop"):
        works = [record(lambda name=name: enqueued.append(name), torch.device("cuda:0")) for name in "ab"]
    assert enqueued == []
    for work in (*works, works[0]):
        work.launch(None)
    assert enqueued == ["a", "b", "a"]
    (message,) = caplog.messages
    assert message.startswith("CUDA could not begin to record: ERROR (801). Kernels are launched one by one")


def test_too_little_memory_is_an_error_all_the_same(monkeypatch):
    refuse(CapacityError("Expected room in the GPU's memory, found none."), monkeypatch)
    with pytest.raises(CapacityError):
        record(lambda: None, torch.device("cuda:0"))
