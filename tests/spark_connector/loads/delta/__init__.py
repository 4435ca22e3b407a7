"""Loads into Delta tables."""
