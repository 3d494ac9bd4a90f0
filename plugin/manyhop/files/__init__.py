"""Tensors and whole graphs in files."""

from manyhop.files._rows import Rows, names, open
from manyhop.files._write import TensorFile, write

__all__ = ["Rows", "TensorFile", "names", "open", "write"]
