"""Sizes of the feature matrices and the operator classes, which the schemas name without numpy or the readers."""

OPS = (
    *("conv2d", "depthwise", "matmul", "batch_matmul", "softmax", "pool"),
    *("norm", "reduce", "elementwise", "other"),
)
"""Operator classes, in the order of the last columns of a statement: a change raises the version of the schemas."""
PERSTORE_WIDTH = 164
"""Columns that PerStoreFeature gives with `extract_workload=False`."""
STATEMENT_WIDTH = PERSTORE_WIDTH + len(OPS)
"""Columns of a statement with its operator: PerStoreFeature's, and one for each of `OPS`."""
STATEMENT_ROWS = 10
"""Statements of a program."""
PROGRAM_COLUMNS = 140
"""Columns of a program's loop nest (see `nest_columns`), without the device's."""
WAVE_COLUMNS = 3
"""The last columns of a program's loop nest, which count the device's compute units: 0 without a device."""
