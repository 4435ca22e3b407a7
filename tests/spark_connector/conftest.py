"""What the connector's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.worker_clients import worker_clients
from tests.support.fake_s3 import FakeS3
from tests.support.postgres import Postgres
from tests.support.requirements import Unavailable, give_up


@pytest.fixture(scope="session", autouse=True)
def close_connections_at_the_end() -> Iterator[None]:
    """Tests that read in this process leave connections open, as a Spark worker does between tasks."""
    yield
    worker_clients().close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[FakeS3]:
    with FakeS3() as server:
        yield server


@pytest.fixture
def s3(s3_server: FakeS3) -> FakeS3:
    """An empty S3 whose requests exclude each other."""
    s3_server.reset()
    return s3_server


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
