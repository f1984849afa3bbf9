"""Adaptation: measure a few programs of this machine, learn from them, keep the model if it ranks better.

The folder is not called `adapt`, because `tchub.hub.adapt` is the function.
"""
