"""Loads into files: directories that appear by one rename, their commit log in files or in ZooKeeper."""
