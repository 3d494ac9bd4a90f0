"""How NCCL is called for the exchange between GPUs; without one."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from manyhop.features.exchange.peers import _NCCL, Peers


class Calls:
    """NCCL, which notes its calls; one of its functions may fail."""

    def __init__(self, failing: str = "") -> None:
        self.made: list[tuple[object, ...]] = []
        self._failing = failing

    def __getattr__(self, name):
        def call(*args):
            self.made.append((name, *args))
            return 5 if name == self._failing else 0

        return call


def peers(calls, communicator=77):
    made = object.__new__(Peers)
    made._nccl = _NCCL(calls.begin, calls.send, calls.receive, calls.end, lambda code: f"code {code}".encode())
    made._backend = SimpleNamespace(_comm_ptr=lambda: communicator)
    return made


def test_each_rank_gets_its_part_and_sends_one():
    calls, received, sent = Calls(), torch.zeros(6, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    assert peers(calls)._call_nccl(received, sent, [2, 0, 4], [9, 0, 0], 3)
    assert calls.made == [
        ("begin",),
        ("send", sent.data_ptr(), 72, 0, 0, 77, 3),
        ("receive", received.data_ptr(), 16, 0, 0, 77, 3),
        ("receive", received.data_ptr() + 16, 32, 0, 2, 77, 3),
        ("end",),
    ]


@pytest.mark.parametrize("failing", ["begin", "send", "end"])
def test_a_failure_is_raised_after_the_last_call(failing):
    calls, words = Calls(failing), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="NCCL: code 5"):
        peers(calls)._call_nccl(words, words, [0, 2, 2], [0, 2, 2], 3)
    assert [name for name, *_ in calls.made][-1] == "end"


def test_torch_connects_the_ranks():
    calls, words = Calls(), torch.zeros(4)
    assert not peers(calls, communicator=0)._call_nccl(words, words, [0, 4], [0, 4], 3)
    assert calls.made == []
