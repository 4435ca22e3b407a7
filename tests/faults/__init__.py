"""Tests that kill processes at random moments."""
