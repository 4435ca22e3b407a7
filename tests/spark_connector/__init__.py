"""Tests of spark_connector, file by file."""
