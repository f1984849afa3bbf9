"""TVM: tasks of a network, candidate programs, the cost-model plug-in, and the sessions that collect, adapt and tune.

Nothing is exported here: `tchub.hub` offers the public names, and each module imports TVM when it is used.
"""
