"""Tests of spark_connector/union_read."""
