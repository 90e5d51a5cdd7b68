"""`python -m scaled_mm`, the same as `scaled-mm`."""

import sys

from scaled_mm_cli.main import main

sys.exit(main())
