"""Tests of spark_connector/progress."""
