"""Tables of the command line."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as aligned columns. The last column is wrapped at the width of the terminal."""
    *others, _ = zip(*rows, strict=True)
    widths = [max(map(len, column)) + 2 for column in others]
    indent = " " * sum(widths)
    width = max(shutil.get_terminal_size((120, 24)).columns, len(indent) + 40)
    for *cells, last in rows:
        head = "".join(map(str.ljust, cells, widths))
        yield (textwrap.fill(last, width, initial_indent=head, subsequent_indent=indent) or head).rstrip()
