"""`python -m tchub.hub.cli`, by which a launcher of several processes starts `tchub`."""

import sys

from . import main

sys.exit(main())
