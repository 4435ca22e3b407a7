"""Tests of directories on any file system."""
