"""The benchmark of embeddings: both contenders do the same, and are measured."""

import re

import torch

from manyhop_bench.cli import main
from manyhop_bench.embeddings.contenders import contenders
from manyhop_bench.gpu.timing import Ranks


def test_a_small_run(capsys, tmp_path):
    threads = torch.get_num_threads()
    try:
        assert main(["embeddings", "--rows", "500", "--ids", "200", "--rounds", "2", "--output", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    table = capsys.readouterr().out
    assert (tmp_path / "embeddings.md").read_text() == table
    found = re.findall(r"\| ([^|]+) \| ([^|]+) \| 1 \| [\d.,]+ \([\d.,]+-[\d.,]+\) \| [\d.]+ x \| (\d+%|-) \|", table)
    works, names, shares = zip(*found, strict=True)
    assert set(works) == {"backward, update", "forward, backward, update"}
    assert set(names) == {name for name, _ in contenders(Ranks(0, 1, torch.device("cpu")))}
    assert [share == "-" for share in shares] == [False, False, True, True] * (len(found) // 4)


def test_more_ids_than_rows(capsys):
    assert main(["embeddings", "--rows", "5", "--ids", "6"]) == 1
    assert "Expected at most 5 ids, got 6" in capsys.readouterr().err
