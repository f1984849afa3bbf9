"""Measured programs, kept: the store of a home and of a run, MetaSchedule's database over it, and what may compare."""
