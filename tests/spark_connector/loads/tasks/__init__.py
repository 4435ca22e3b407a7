"""Tests of the direct road."""
