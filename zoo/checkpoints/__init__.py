"""The checkpoints that ship in the wheel: `<name>/<version>/` with config, weights, metrics and card.

Written by `python -m scripts.zoo.build publish`; `hub.registry` finds them through its index.
"""
