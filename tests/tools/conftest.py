"""What the tests of the tools share."""

from __future__ import annotations

from tests.support.store_fixtures import s3, s3_server

__all__ = ["s3", "s3_server"]
