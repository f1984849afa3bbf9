"""The static catalogue of checkpoints: one page to search and compare, one page a checkpoint."""
