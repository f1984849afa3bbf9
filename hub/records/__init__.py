"""Measured programs, kept: the store of a home and of a run, and MetaSchedule's database over it.

The scope in which latencies may be compared is `zoo.corpus.scope.Scope`.
"""
