"""Tests of spark_connector/history_and_tail."""
