"""``python -m manyhop_tools.cli``."""

import sys

from manyhop_tools.cli import main

sys.exit(main())
