"""Walks a person from a machine to a contributed checkpoint, step by step, and goes on where it stopped."""
