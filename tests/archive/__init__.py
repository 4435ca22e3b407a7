"""Tests of broker/archive."""
