"""GraphBolt: another name of ``manyhop_graphbolt``."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("manyhop_graphbolt")
