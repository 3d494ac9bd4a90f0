"""GraphBolt: another name of ``manyhop_graphbolt``."""

import sys

import manyhop_graphbolt

sys.modules[__name__] = manyhop_graphbolt
