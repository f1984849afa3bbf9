"""Networks: what `tune` takes, as tasks in TVM, and compiled to a library that is checked and timed."""
