"""The command ``manyhop``."""

from manyhop_tools.cli.commands import main, parser

__all__ = ["main", "parser"]
