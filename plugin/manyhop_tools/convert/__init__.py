"""Conversion of other formats to graphs on disk, and renumbering of their nodes."""
