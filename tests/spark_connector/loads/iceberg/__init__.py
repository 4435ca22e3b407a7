"""Loads into Iceberg tables."""
