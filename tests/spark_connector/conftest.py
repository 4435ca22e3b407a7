"""What the connector's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.worker_clients import worker_clients


@pytest.fixture(scope="session", autouse=True)
def close_connections_at_the_end() -> Iterator[None]:
    """Tests that read in this process leave connections open, as a Spark worker does between tasks."""
    yield
    worker_clients().close()
