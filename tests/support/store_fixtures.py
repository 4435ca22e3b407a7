"""Object stores for the tests that ask for one; a folder whose conftest.py imports them has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.cloud_emulators import azure, google, moto
from tests.support.fake_s3 import FakeS3
from tests.support.requirements import Unavailable, give_up


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
def azure_options() -> Iterator[dict[str, str]]:
    """Storage options of an Azure with the container `lake`."""
    with _emulator(azure()) as options:
        yield options


@pytest.fixture(scope="session")
def google_options() -> Iterator[dict[str, str]]:
    """Storage options of a Google Cloud Storage with the bucket `lake`."""
    with _emulator(google()) as options:
        yield options


@pytest.fixture(scope="session")
def moto_options() -> Iterator[dict[str, str]]:
    """Storage options of an S3 by moto, with the bucket `lake`."""
    with _emulator(moto()) as options:
        yield options


@contextlib.contextmanager
def _emulator(starting: contextlib.AbstractContextManager[dict[str, str]]) -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as stack:
        try:
            options = stack.enter_context(starting)
        except Unavailable as error:
            give_up(str(error))
        yield options
