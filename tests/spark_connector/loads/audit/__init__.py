"""Recounting loads against the log."""
