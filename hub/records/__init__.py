"""Measured programs, kept: the store of a home and of a run, and MetaSchedule's database over it.

The scope in which latencies compare is `scope.MeasurementScope`; that of corpora is `SCOPE` of `zoo.corpus.schema`.
"""
