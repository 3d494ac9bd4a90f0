"""``python -m manyhop.cli``."""

import sys

from manyhop.cli import main

sys.exit(main())
