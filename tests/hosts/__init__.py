"""Tests on hosts that share nothing but the code (tests/support/hosts.py); they need root."""
