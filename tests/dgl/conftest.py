"""Each test of the DGL adapter begins without a seed of DGL's."""

import pytest

from manyhop_dgl import _seeding


@pytest.fixture(autouse=True)
def _unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_seeding, "_seeded", None)
