"""Graphs of other formats -> a graph on disk; graphs on disk -> the same with other numbers of their nodes."""
