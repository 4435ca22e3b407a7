"""axe-core finds nothing wrong with any page: light, dark, on a phone. Focus is seen, and a phone shows the page first.

All pages are looked at in one test, for the browser and axe-core are what costs: ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from tests.support.axe import violations
from tests.support.kafka import Kafka
from tests.support.requirements import Unavailable, give_up
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

NAME = "axe-flights"
PAGES = [
    "/", "/topics?internal=1", f"/topics/{NAME}", f"/topics/{NAME}/records", f"/topics/{NAME}/records?from=offset&at=1",
    f"/topics/{NAME}/settings", "/groups?own=1", "/groups/axe-group", "/streams", "/transactions",
    "/transactions?hanging=1", "/archive", "/brokers", "/brokers/{broker}", "/loads",
    "/find", "/find?q=axe", "/find?q=no-such",
    "/new-topic", f"/topics/{NAME}/produce", f"/topics/{NAME}/delete", f"/topics/{NAME}/delete-records",
    f"/topics/{NAME}/change-settings", "/reset-group/axe-group", "/delete-group/axe-group", "/topics/no-such-topic",
]  # fmt: skip
LOOKS = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}


@pytest.fixture(scope="module")
def console(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiProcess]:
    """With something on each page, and every page that a console can have."""
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(NAME, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(20):
            producer.send(NAME, b'{"id": %d, "tags": ["a", null, true]}' % number, key=b"k", headers=[("trace", b"t")])
    with Consumer(broker.bootstrap, {"group.id": "axe-group", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([NAME])
        eventually(lambda: bool(consumer.poll(0.5)))
        consumer.commit()
    with UiProcess(broker.bootstrap, "--allow-changes", "--loads", str(tmp_path_factory.mktemp("lake"))) as process:
        eventually(lambda: "axe-group" in process.get("/groups?own=1").text)
        yield process


def _page(chromium: Browser, console: UiProcess, look: str) -> Page:
    scheme, width = LOOKS[look]
    page = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()  # type: ignore[arg-type]
    page.goto(console.entrance)
    return page


@pytest.mark.timeout(300)  # 26 pages; three quarters of a minute were seen on a busy machine
@pytest.mark.parametrize("look", LOOKS)
def test_no_page_has_anything_that_axe_complains_of(
    chromium: Browser, console: UiProcess, broker: Kafka, look: str
) -> None:
    page, wrong = _page(chromium, console, look), []
    with Cluster(broker.bootstrap) as cluster:
        id_ = str(cluster.brokers()[0].id)
    for path in PAGES:
        answer = page.goto(f"{console.address}{path.replace('{broker}', id_)}")
        assert answer is not None
        assert answer.status == (404 if "no-such-topic" in path else 200), path
        for details in page.locator("details:not([open])").all()[:3]:
            details.evaluate("one => { one.open = true }")
        try:
            wrong += [f"{path}: {text}" for text in violations(page)]
        except Unavailable as error:
            give_up(f"axe-core: {error}")
    page.context.close()
    assert wrong == [], "\n".join(wrong)


def test_a_phone_shows_the_page_and_not_its_navigation(chromium: Browser, console: UiProcess) -> None:
    page = _page(chromium, console, "phone")
    for path in ("/", "/loads"):
        page.goto(f"{console.address}{path}")
        box, current = page.locator("header").bounding_box(), page.locator("nav [aria-current]")
        assert box is not None
        assert box["height"] < 110
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, (
            "nothing is cut, and nothing moves sideways"
        )
        at = current.bounding_box()
        assert at is not None
        assert 0 <= at["x"] <= at["x"] + at["width"] <= 390, "where one is, is seen"
    page.context.close()


def test_what_has_the_focus_is_seen(chromium: Browser, console: UiProcess) -> None:
    page = _page(chromium, console, "dark")
    page.goto(f"{console.address}/topics")
    styles = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        styles.add(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    page.context.close()
    assert styles == {"solid"}
