"""``python -m skvfusion``."""

import sys

from .cli import main

sys.exit(main())
