"""``python -m orca_sidecar`` is the command ``orca-sidecar``."""

import sys

from orca_sidecar.cli import main

sys.exit(main())
