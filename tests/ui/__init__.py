"""Tests of the console in the browser."""
