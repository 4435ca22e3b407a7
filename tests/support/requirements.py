"""What a test needs from outside Python: how its absence is reported, and where it is kept once fetched.

On a user's machine a missing system package skips the test with the reason; with CI=true it fails it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest


class Unavailable(Exception):
    """Something cannot be had on this machine; the text says what and why."""


def give_up(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be missing."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"missing with CI=true: {reason}", pytrace=False)
    pytest.skip(reason)


def cache_directory() -> Path:
    """The user's cache of what tests have fetched; kept between runs."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pykafka-tests"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
