"""Loads into files: the two-step commit, its crashes and rivals, the lists of loads."""
