"""Tests of broker/patterns."""
