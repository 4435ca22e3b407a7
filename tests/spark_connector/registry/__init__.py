"""Tests of spark_connector/registry."""
