"""Tests of the cluster layer."""
