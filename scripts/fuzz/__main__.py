"""Fuzz every reader of foreign files: `python -m scripts.fuzz`."""

from scripts.fuzz.run import main

main()
