"""Bundles: programs compiled here for a machine that has no compiler, and the results that come back from it."""
