"""Measurements, not tests: `python -m tests.bench` prints ratios against ceilings taken in the same run."""
