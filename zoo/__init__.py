"""The science: schedule primitives, features, corpora, cost models, training and adaptation.

Nothing here reaches the network or prints; `tchub.hub` does that.
"""
