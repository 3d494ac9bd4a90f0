"""Trainable rows by id: a table in any memory, whose gradients are sent to the ranks that own its rows."""

from manyhop_embedding.ahead import RowsAhead
from manyhop_embedding.module import Embedding
from manyhop_embedding.place import TablePlace

__all__ = ["Embedding", "RowsAhead", "TablePlace"]
