"""``python -m manyhop_bench TARGET``: the same as ``manyhop bench TARGET``."""

import sys

from manyhop_bench.cli import main

sys.exit(main())
