"""Rows that are not all in the memory of this process, or not all as near: what is where."""
