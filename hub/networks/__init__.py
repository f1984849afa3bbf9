"""Networks: what `tune` takes, as tasks in TVM, and compiled to a library that is checked and timed."""

LAYOUTS = ("channels-last", "as-imported")
"""Layouts of the convolutions; `as-imported` leaves the graph as it is, for Relax's `zero` pipeline alone."""
