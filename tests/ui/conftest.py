"""A console of any Kafka, shared by the tests of a file, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.chromium import Tab, browser
from tests.support.kafka import Kafka
from tests.support.requirements import Unavailable, give_up
from tests.support.ui_process import UiProcess
from tests.support.waiting import PATIENCE_S, eventually

expect.set_options(timeout=1000 * PATIENCE_S)


@pytest.fixture(scope="module")
def broker(foreign_kafka: Kafka | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Any Kafka, or a broker of this file's own: lists show what the file has made, and not what other tests have."""
    if foreign_kafka is not None:
        yield foreign_kafka
        return
    with BrokerProcess(tmp_path_factory.mktemp("ui") / "data", SESSION_SETTINGS, standalone=True) as process:
        yield process


@pytest.fixture(scope="module")
def ui(broker: Kafka) -> Iterator[UiProcess]:
    with UiProcess(broker.bootstrap) as process:
        eventually(lambda: process.get("/api/v3/clusters").status == 200)  # a page waits for the cluster 3 s at most
        yield process


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    try:
        with browser() as running:
            yield running
    except Unavailable as error:
        give_up(f"chromium: {error}")


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Iterator[Page]:
    """For one test of a file after the other: a new one, with its cold cache, costs a second of a core."""
    context = chromium.new_context()
    context.set_default_timeout(1000 * PATIENCE_S)
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(window: Page, ui: UiProcess) -> Iterator[Tab]:
    made = Tab(window, ui.address)
    yield made
    assert made.page.title() != "run", "a script of a record has run"
    made.leave()
    assert made.complaints == []
