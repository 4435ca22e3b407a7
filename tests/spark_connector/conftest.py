"""What the connector's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.worker_clients import worker_clients
from tests.support.postgres import Postgres
from tests.support.requirements import Unavailable, give_up
from tests.support.store_fixtures import azure_options, google_options, moto_options, s3, s3_server

__all__ = ["azure_options", "google_options", "moto_options", "s3", "s3_server"]


@pytest.fixture(scope="session", autouse=True)
def close_connections_at_the_end() -> Iterator[None]:
    """Tests that read in this process leave connections open, as a Spark worker does between tasks."""
    yield
    worker_clients().close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy's URL of a real PostgreSQL for the whole session; take tables and groups of your own."""
    try:
        server = Postgres()
        url = server.start()
    except Unavailable as error:
        give_up(str(error))
    yield url
    server.stop()
