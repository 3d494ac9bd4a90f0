"""Optimizers of trainable rows: another name of ``manyhop_embedding.optim``."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("manyhop_embedding.optim")
