"""The test suite; folders mirror the source."""
