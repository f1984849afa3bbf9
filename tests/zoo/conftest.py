"""Puts this folder on the path: its samples are shared by the tests of several rooms."""
