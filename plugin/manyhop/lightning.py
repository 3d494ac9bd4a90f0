"""Callbacks of Lightning: another name of ``manyhop_train.lightning``."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("manyhop_train.lightning")
