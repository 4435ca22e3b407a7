"""Tests of the group coordinator."""
