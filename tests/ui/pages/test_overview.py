"""The overview says whether all is well, and what is not; the finder leads anywhere; what pages load has a version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.embedded import EmbeddedCluster
from pykafka_ui.pages.cluster_pages import matching
from tests.support.chromium import Tab
from tests.support.kafka import Kafka, await_topics
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

NAMES = ["found-here", "found", "not-found", "other"]


@pytest.fixture(scope="module")
def names(broker: Kafka) -> list[str]:
    with Cluster(broker.bootstrap) as cluster:
        for name in NAMES:
            Admin(cluster).create_topic(name)
    await_topics(broker.bootstrap, *NAMES)
    return NAMES


def _health(ui: UiProcess) -> str:
    (found,) = re.findall(r'<section class="health.*?</section>', ui.get("/").text, re.DOTALL)
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", str(found)))


def test_all_is_well_with_a_cluster_of_which_all_is_known(ui: UiProcess, names: list[str]) -> None:
    eventually(lambda: "All is well" in _health(ui))
    assert "Looked at 1 broker, " in _health(ui)


def test_counts_agree_with_the_lists_that_they_lead_to(ui: UiProcess, names: list[str]) -> None:
    eventually(lambda: f'<a href="/topics">{len(names)}</a>' in ui.get("/").text)
    assert f"{len(names)} topics" in ui.get("/topics").text


def test_a_broker_that_is_gone_is_told_with_what_lacks_it(tmp_path: Path) -> None:
    """A cluster of its own, of which one broker ends: three seconds."""
    with EmbeddedCluster(2, tmp_path, settings={"default.replication.factor": "2"}) as brokers:
        with Cluster(brokers.bootstrap) as cluster:
            Admin(cluster).create_topic("kept-twice", 2, 2)
            Admin(cluster).create_topic("kept-once", 2, 1)
        with UiProcess(brokers.brokers[1].bootstrap) as ui:
            eventually(lambda: "All is well" in _health(ui))
            brokers.brokers[2].kill()
            # Until the controller has acted, what is kept twice has no leader either.
            words = ("Broker 2 is away", "1 partition of kept-once is without a leader", "are under-replicated")
            eventually(lambda: all(each in _health(ui) for each in words))
            text = _health(ui)
            assert "things are wrong" in text
            assert text.index("Broker 2 is away") < text.index("without a leader") < text.index("under-replicated")
            page = ui.get("/").text
            assert 'href="/topics?state=no-leader&amp;internal=1"' in page
            listed = ui.get("/topics?state=no-leader&internal=1").text
            assert ("kept-once" in listed, "kept-twice" in listed) == (True, False)


def test_the_finder_puts_the_name_itself_first() -> None:
    named = [(name, f"/{name}") for name in NAMES]
    assert [name for name, _ in matching("FOUND", named)] == ["found", "found-here", "not-found"]
    assert matching("nowhere", named) == []


def test_a_topic_is_found_from_anywhere_with_the_keyboard(tab: Tab, names: list[str]) -> None:
    page = tab.open("/brokers")
    page.keyboard.press("/")
    finder = page.get_by_label("Find a topic, a group or a load")
    expect(finder).to_be_focused()
    page.keyboard.type("found")
    hits = page.locator("#finder-list a")
    expect(hits).to_have_text(["found", "found-here", "not-found"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(hits.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(hits.nth(0)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#finder-list")).to_be_hidden()
    expect(finder).to_have_value("")
    page.keyboard.press("/")
    page.keyboard.type("found")
    expect(hits).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="found", exact=True)).to_be_visible()


def test_a_slash_in_a_field_is_a_slash(tab: Tab, names: list[str]) -> None:
    page = tab.open("/topics")
    page.get_by_role("searchbox").press_sequentially("a/b")
    expect(page.get_by_role("searchbox")).to_have_value("a/b")


def test_the_finder_works_without_scripts(ui: UiProcess, names: list[str]) -> None:
    eventually(lambda: all(ui.get(f"/topics/{name}").status == 200 for name in names), interval=0.5)
    found = ui.get("/find?q=found").text
    assert [found.index(f'<a href="/topics/{name}">') for name in ("found", "found-here", "not-found")]
    assert "<title>other · pykafka</title>" in ui.get("/find?q=oth").text, "the only one is shown itself"
    assert "Nothing has “&lt;b&gt;” in its name." in ui.get("/find?q=%3Cb%3E").text
    assert ui.get("/find").status == ui.get("/find?q=%20").status == 200


@pytest.fixture(scope="module")
def files(ui: UiProcess) -> list[str]:
    return re.findall(r'(?:src|href)="(/static/[^"]+)"', ui.get("/").text)


def test_what_a_page_loads_is_kept_for_ever_at_the_address_of_its_version(ui: UiProcess, files: list[str]) -> None:
    assert len(files) == 7
    for address in files:
        answer = ui.get(address)
        assert (answer.status, answer.headers["cache-control"]) == (200, "private, max-age=31536000, immutable"), (
            address
        )
        assert ui.get(address.partition("?")[0]).headers["cache-control"] == "private, max-age=3600"
        assert ui.get(f"{address}0").headers["cache-control"] == "private, max-age=3600", "of another version"
