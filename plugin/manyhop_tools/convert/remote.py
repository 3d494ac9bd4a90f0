"""Files at addresses (``s3://``, ``gs://``, ``https://``, ...), by fsspec -> files here."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath

from manyhop.errors import InputError, MissingExtraError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://")


def address_in(text: str) -> str | None:
    """Return the address that a text ends with, as in ``x=s3://bucket/x.npy``; ``None`` without one."""
    found = _ADDRESS.search(text)
    return None if found is None else text[found.start() :]


def fetch(address: str, folder: Path) -> Path:
    """Copy a file, or a folder with all in it, from an address. A raw file is copied with its manifest.

    Args:
        address: what fsspec can open; credentials are those of its file systems (``FSSPEC_S3_KEY``, ...).
        folder: receives a folder with the copy, which retains its name.

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
