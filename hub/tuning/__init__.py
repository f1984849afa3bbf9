"""Sessions on a device: collecting a corpus and tuning a network, with the compiled library and its report.

Nothing is exported here: `tchub.hub` offers the public names, and each module imports TVM when it is used.
"""
