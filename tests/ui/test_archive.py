"""The page of the archive: what is archived, what waits, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.archiving_broker import archiving_broker, close_segments
from tests.support.broker_process import BrokerProcess
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with archiving_broker(tmp_path_factory.mktemp("archive")) as process:
        yield process


def test_the_page_shows_how_far_the_archive_is(ui: UiProcess, broker: BrokerProcess) -> None:
    assert "No topic has an archive" in ui.get("/archive").text
    close_segments(broker, "events")
    all_archived = re.compile(r'[1-9][^,]* KiB\W[^,]* archived, [^,]*title="0 bytes"')
    eventually(lambda: bool(all_archived.search(ui.get("/archive").text)), interval=0.5)
    shown = ui.get("/archive").text
    assert "events-0" in shown
    assert 'href="/topics/events"' in shown
    assert "with a problem" not in shown
    assert "No topic with an archive has" in ui.get("/archive?q=nothing").text


def test_the_page_says_why_the_archive_does_not_go_on(ui: UiProcess, broker: BrokerProcess) -> None:
    close_segments(broker, "events")
    archive = broker.data_dir.parent / "archive"
    archive.rename(archive.with_name("away"))
    archive.touch()
    close_segments(broker, "events")
    eventually(lambda: "1 partition with a problem" in ui.get("/archive").text, interval=0.5)
    assert "Not a directory" in ui.get("/archive?sort=problem").text


def test_a_topic_has_the_size_of_its_archive_too(ui: UiProcess, broker: BrokerProcess) -> None:
    (topic,) = set(re.findall(r'href="/topics/([^"/]+)"', ui.get("/archive").text))
    pages = ("/", "/topics", f"/topics/{topic}")
    eventually(lambda: all(re.search(r"\+ .*KiB.* archived", ui.get(page).text) for page in pages), interval=0.5)
