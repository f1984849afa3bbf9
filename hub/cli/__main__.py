"""`python -m tchub.hub.cli`, by which a launcher of several processes starts `tchub`."""

import os
import sys

from . import main

code = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # PyTorch's threads of a process group can abort an interpreter that is shutting down, all work done
    # (pytorch/pytorch#190489): a launcher would call the run failed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
