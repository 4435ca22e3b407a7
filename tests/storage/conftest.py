"""What the tests of storage share."""

from __future__ import annotations

from tests.support.store_fixtures import azure_options, google_options, moto_options, s3, s3_server

__all__ = ["azure_options", "google_options", "moto_options", "s3", "s3_server"]
