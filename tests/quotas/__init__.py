"""Tests of broker/quotas."""
