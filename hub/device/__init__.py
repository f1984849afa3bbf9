"""This machine: detection, measuring programs in isolated workers, and the measurement journal.

`Measurer` and `Journal` are exported lazily: they need TVM only when they measure.
"""
