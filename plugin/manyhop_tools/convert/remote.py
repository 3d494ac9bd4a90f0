"""Files at addresses (``s3://``, ``gs://``, ``https://``, ...), by fsspec -> files here."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath

from manyhop.errors import InputError, MissingExtraError
from manyhop_tools.convert.source import report

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://")


def has_address(text: str) -> bool:
    """Return whether a text ends with an address, as ``x=s3://bucket/x.npy`` does."""
    return _ADDRESS.search(text) is not None


class Copies:
    """Copies of files at addresses, each in a folder of its own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies: dict[str, Path] = {}

    def local(self, text: str, end: str) -> str:
        """Replace an address in a text, which ends at the character ``end`` of its last part, by that of a copy."""
        found = _ADDRESS.search(text)
        if found is None:
            return text
        parent, slash, name = text[found.start() :].rpartition("/")
        name, mark, rest = name.partition(end) if end else (name, "", "")
        address = parent + slash + name
        if address not in self._copies:
            report(f"{address}: is copied.")
            self._copies[address] = _fetch(address, self._folder)
        return f"{text[: found.start()]}{self._copies[address]}{mark}{rest}"


def _fetch(address: str, folder: Path) -> Path:
    """Copy a file with the manifest of a raw file, or a folder with all in it, into a new folder in ``folder``.

    Raises:
        InputError: no such file, or no access.
        MissingExtraError: fsspec is not installed.
    """
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec", "files", f"Reading {address}") from None
    try:
        files, path = fsspec.core.url_to_fs(address)
        here = Path(tempfile.mkdtemp(dir=folder)) / (PurePosixPath(path).name or "data")
        if not files.isdir(path):
            names = [path, f"{path}.json"] if path.endswith(".bin") and files.exists(f"{path}.json") else [path]
            for name in names:
                files.get_file(name, str(here.with_name(PurePosixPath(name).name)))
        elif any(".." in PurePosixPath(name).parts for name in files.find(path)):
            raise InputError(f"{address}: expected names without '..' in the folder. Copy its files yourself.")
        else:
            files.get(f"{path.rstrip('/')}/", f"{here}/", recursive=True)
        return here
    except InputError:
        raise
    except Exception as error:  # file systems have their own errors
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "  # "Install s3fs to access S3"
        raise InputError(f"{address}: cannot be read: {kind}{str(error).rstrip('.')}.") from error
