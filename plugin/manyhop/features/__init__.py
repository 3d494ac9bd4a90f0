"""Rows of features by global id: gathering, and the memory that it goes to."""

from manyhop.features._buffers import BufferPool
from manyhop.features._gather import RowRequest, gather

__all__ = ["BufferPool", "RowRequest", "gather"]
