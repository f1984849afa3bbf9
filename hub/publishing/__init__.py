"""A checkpoint goes out: checks before publishing, the Hub repository, its entry in the index."""
