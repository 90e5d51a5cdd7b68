"""`python -m scaled_mm`, the same as `scaled-mm`."""

import sys

from .cli import main

sys.exit(main())
