"""The table that ``manyhop plan`` prints."""

import re


def placements(printed: str) -> dict[str, str]:
    """Return the placement of each row by its name."""
    return dict(re.findall(r"^(\S+)  .*?\d (?:B|[KMGT]iB) +(\S+)  ", printed, flags=re.MULTILINE))
