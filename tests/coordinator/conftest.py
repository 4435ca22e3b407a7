"""The tests of coordinators use the fixtures of a slow disk."""

from __future__ import annotations

from tests.support.slow_disk import clock, disk, threads

__all__ = ["clock", "disk", "threads"]
