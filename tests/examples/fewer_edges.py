"""Run an example with a third of the edges to predict: ``python fewer_edges.py SCRIPT ARGUMENTS``, in its folder."""

import functools
import runpy
import sys

sys.path.insert(0, "")
datasets = __import__("datasets")  # of the examples
datasets.movies = functools.partial(datasets.movies, min_roles=20)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
