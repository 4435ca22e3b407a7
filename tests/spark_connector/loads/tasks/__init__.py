"""Tests of spark_connector/loads/tasks."""
