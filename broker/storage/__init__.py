"""Directories on any file system, with operations that a commit can rely on."""
