"""Tests against a real HDFS, started by conftest.py."""
