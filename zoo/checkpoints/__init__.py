"""The checkpoints that ship in the wheel: `<name>/<version>/` with config, weights, metrics and card.

Written by `scripts/build_checkpoint.py`; `hub.registry` finds them through its index.
"""
