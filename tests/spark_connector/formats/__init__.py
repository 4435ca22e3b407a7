"""Tests of value formats."""
