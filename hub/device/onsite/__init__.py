"""Code that travels in a bundle: it measures the programs with the standard library, numpy and TVM's runtime alone.

Nothing here may import tchub, TVM's Python package or anything else: the machine that runs it has none of them.
The code must run on Python 3.10.
"""
