"""Measurements, not tests: `python -m bench` prints ratios against ceilings taken in the same run."""
