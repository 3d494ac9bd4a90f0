"""Tables in folders: each rank writes the rows that it owns, and reads those that it owns then."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from manyhop import files
from manyhop.arguments import path_of
from manyhop.errors import InputError, StateError
from manyhop.features.exchange.spread import overlap
from manyhop.features.whole_memory.partition import read_rows
from manyhop.files.dtypes import dtype_name
from manyhop.files.formats import read_json
from manyhop.files.part import FilePart
from manyhop.files.rows import Rows
from manyhop.files.tensor_file import unfinished, writing
from manyhop.ranks import control, cuda, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_embedding.place import Table

Tables = Mapping[str, Table]
"""Tables by their names in the folder."""


def save_tables(folder: str | PathLike[str], tables: Tables, facts: Mapping[str, Any] | None = None) -> None:
    """Write tables to a new folder, which appears when all ranks have written their rows. All ranks call it.

    ``NAME.json`` is the manifest of a table, which :func:`manyhop.files.open` reads; its parts are raw files.

    Args:
        folder: that all nodes see, and that does not exist.
        tables: what to write.
        facts: what JSON can hold, equal on all ranks; for ``facts.json``.

    Raises:
        CapacityError: the disk is full.
        InputError: the folder exists, or cannot be written.
        RankError: another rank failed.
    """
    path = path_of("folder", folder)
    title, rank = f"saving {path}", world.init().rank
    partial = unfinished(path)  # that of rank 0 becomes the folder

    def begin() -> None:
        if rank == 0:
            if path.exists():
                raise InputError(f"Expected a folder that does not exist, got {path}. Save to another, or remove it.")
            with writing(partial, 0):
                partial.mkdir(parents=True)

    def write() -> dict[str, dict[str, Any]]:
        if cuda.initialized():
            torch.cuda.synchronize()  # updates of pinned rows
        return {name: _write_part(partial, name, rank, table) for name, table in tables.items()}

    def end() -> None:
        if rank == 0:
            for name, table in tables.items():
                parts = [found[name] for found in every if found[name]["rows"]]
                parts.sort(key=lambda part: int(part.pop("begin")))
                shape = [table.owners.num_rows, *table.own.shape[1:]]
                _write_json(
                    partial / f"{name}.json", {"shape": shape, "dtype": dtype_name(table.own.dtype), "parts": parts}
                )
            if facts is not None:
                _write_json(partial / "facts.json", {"facts": facts, "crc32": _crc32(facts)})
            with writing(path, 0):
                partial.rename(path)

    try:
        control.attempt(f"{title}: folder", begin, timeout=DEFAULT_TIMEOUT)
        names = control.exchange(f"{title}: name", {"name": partial.name}, timeout=DEFAULT_TIMEOUT)
        partial = path.with_name(names[0]["name"])
        own = control.attempt(f"{title}: rows", write, timeout=DEFAULT_TIMEOUT)
        every = control.exchange(f"{title}: parts", own, timeout=DEFAULT_TIMEOUT)
        control.attempt(f"{title}: manifests", end, timeout=DEFAULT_TIMEOUT)
    except BaseException:
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def load_tables(folder: str | PathLike[str], tables: Tables) -> None:
    """Read tables from a folder, written by any number of ranks: each rank its own rows. All ranks call it.

    Nothing is read into the tables before all ranks have checked all files that they read.

    Raises:
        InputError: no such folder; a file that is missing or damaged.
        RankError: another rank failed.
        StateError: a table has a different shape or dtype.
    """
    path = path_of("folder", folder)

    def check() -> dict[str, Rows]:
        if not path.is_dir():
            raise InputError(f"{path}: there is no such folder. Pass one that an embedding was saved to.")
        found = {name: files.open(path / f"{name}.json") for name in tables}
        for name, table in tables.items():
            shape, dtype = (table.owners.num_rows, *table.own.shape[1:]), table.own.dtype
            if (found[name].shape, found[name].dtype) != (shape, dtype):
                raise StateError(
                    f"Expected {path / name}.json with shape {list(shape)} and {dtype}, got "
                    f"{list(found[name].shape)} and {found[name].dtype}. Make the embedding as it was saved."
                )
        for name, table in tables.items():
            begin = 0
            for part in found[name].parts:
                if overlap(range(begin, begin + part.num_rows), table.rows):
                    part.check(None)
                begin += part.num_rows
        return found

    def read() -> None:
        for name, table in tables.items():
            read_rows(found[name], table.rows, table.own, threads=None, progress=None)

    found = control.attempt(f"loading {path}: checks", check, timeout=DEFAULT_TIMEOUT)
    control.attempt(f"loading {path}", read, timeout=DEFAULT_TIMEOUT)


def load_facts(folder: str | PathLike[str]) -> Any:
    """Return the facts of a folder. All ranks call it.

    Raises:
        InputError: no such file, no JSON, or one that is damaged.
        RankError: another rank failed.
    """
    path = path_of("folder", folder) / "facts.json"

    def read() -> Any:
        try:
            found = read_json(path)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file. Pass a folder that an optimizer was saved to.") from None
        if not isinstance(found, dict) or found.get("crc32") != _crc32(found.get("facts")):
            raise InputError(
                f"{path}: its crc32 is not that of its facts: it is damaged or has been changed. Load a different one."
            )
        return found["facts"]

    return control.attempt(f"loading {path}", read, timeout=DEFAULT_TIMEOUT)


def _write_part(folder: Path, name: str, rank: int, table: Table) -> dict[str, Any]:
    """Write the rows of this rank, if they are of the first copy; returns what the manifest has of them."""
    rows = table.rows if table.owners.has_first_copy(rank) else range(0)
    if not rows:
        return {"rows": 0}
    written = files.write(folder / f"{name}.{rank:05}.bin", table.own)
    (part,) = written.parts
    assert isinstance(part, FilePart)
    return {"begin": rows.start, "file": part.path.name, "rows": len(rows), "crc32": part.crc32}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value) + "\n"
    with writing(path, len(text)):
        path.write_text(text, encoding="utf-8")


def _crc32(facts: Any) -> str:
    return f"{zlib.crc32(json.dumps(facts).encode()):08x}"
