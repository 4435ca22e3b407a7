"""Tests of the offset stores; what all must do is in tests/support/offset_store_contract.py."""
