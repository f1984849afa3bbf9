"""Sizes of the feature matrices, which can be told without what makes them (numpy, the readers of programs)."""

PERSTORE_WIDTH = 164
"""Columns that PerStoreFeature gives with `extract_workload=False`."""
STATEMENT_WIDTH = 174
"""Columns of a statement with its operator: PerStoreFeature's, and one for each of `corpus.schema.OPS`."""
STATEMENT_ROWS = 10
"""Statements of a program."""
PROGRAM_COLUMNS = 140
"""Columns of a program's loop nest (see `nest_columns`), without the device's."""
WAVE_COLUMNS = 3
"""The last columns of a program's loop nest, which count the device's compute units: 0 without a device."""
