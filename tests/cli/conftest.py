"""What tests of the command line share: each runs in a folder of its own."""

from functools import partial

import pytest

from manyhop_tools.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    """Run a command line, and return what it prints; with ``fails``, it has to end with an error that says so."""

    def run(*argv, fails=None):
        status = main(list(map(str, argv)))
        printed = capsys.readouterr()
        assert status == (0 if fails is None else 1), printed.err
        assert fails is None or fails in printed.err
        return printed

    return run


@pytest.fixture
def convert(run):
    return partial(run, "convert")
