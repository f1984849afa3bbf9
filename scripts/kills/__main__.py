"""Kill tuning runs at random moments: `python -m scripts.kills`."""

from scripts.kills.run import main

main()
