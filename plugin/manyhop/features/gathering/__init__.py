"""Rows by id, out of any number of tensors, in one call."""
