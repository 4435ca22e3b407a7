"""Tests of Iceberg tables as destinations of loads."""
