"""Shared test code: real servers as fixtures, waiting for conditions."""
