"""Trainable rows by id: a table in any memory, whose gradients go to the ranks that own its rows."""

from manyhop.embedding.ahead import RowsAhead
from manyhop.embedding.module import Embedding
from manyhop.embedding.place import TablePlace
from manyhop.embedding.rules import Rule

__all__ = ["Embedding", "RowsAhead", "Rule", "TablePlace"]
