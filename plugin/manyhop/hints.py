"""Commands that install what is missing, for the way in which this manyhop was installed."""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


def pip_install(*extras: str) -> str:
    """Return the command that adds extras of manyhop to this installation.

    Args:
        extras: names such as ``"pyg"``.
    """
    command = command_for(",".join(extras), _direct_url(), Path(__file__).parents[2])
    if "dgl" in extras and sys.version_info >= (3, 13):
        command += " (with Python 3.11 or 3.12: DGL has no wheels for later ones)"
    return command


def command_for(extras: str, origin: dict[str, Any] | None, source: Path) -> str:
    """Return the command for an installation.

    Args:
        extras: names, with commas between them.
        origin: the content of ``direct_url.json`` of the installation (PEP 610); ``None``: there is none.
        source: the folder that is a clone if manyhop is imported from one without being installed.
    """
    url = "" if origin is None else str(origin.get("url", ""))
    if origin is None:
        clone = source if (source / "pyproject.toml").is_file() else None
        return f"pip install -e '{clone}[{extras}]'" if clone else f"pip install 'manyhop[{extras}]'"  # from an index
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'{unquote(urlparse(url).path)}[{extras}]'"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision")
        return f"pip install 'manyhop[{extras}] @ {vcs['vcs']}+{url}{f'@{revision}' if revision else ''}'"
    return f"pip install 'manyhop[{extras}] @ {url}'"  # a wheel or an archive


@cache
def _direct_url() -> dict[str, Any] | None:
    try:
        text = metadata.distribution("manyhop").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return None if text is None else json.loads(text)
