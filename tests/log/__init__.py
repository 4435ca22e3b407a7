"""Tests of the partition logs."""
