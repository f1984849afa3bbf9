"""From a checkpoint in a folder to one that others find: evaluation, check, Hub repository, index, contribution."""
