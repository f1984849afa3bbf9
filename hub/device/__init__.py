"""This machine: detection, doctor, the forked workers that measure programs, and the measurement journal.

Nothing is exported here: detection needs no TVM, the rest does, and each module is imported where it is used.
"""
