"""Tests of the sink; what all share is in conftest.py."""
