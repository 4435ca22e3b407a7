"""Pages of records: why a dead letter is one, two side by side, what became of one, live, an address to share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.pages.record_pages import unseen
from pykafka_ui.records.browse import Page
from tests.support.chromium import Tab
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

SCRIPT = "<script>document.title='run'</script>"
TURNED = "\u202e"
"""From here on a line is written from right to left, so that its end may seem to be another one."""


class Loaded(NamedTuple):
    topic: str
    load: str


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def ui(broker: Kafka, lake: Path) -> Iterator[UiProcess]:
    with UiProcess(broker.bootstrap, "--loads", str(lake)) as process:
        yield process


@pytest.fixture(scope="module")
def loaded(broker: Kafka, lake: Path) -> Loaded:
    """Ten records, of which the first five are in a load; a group has read three."""
    name = "became"
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(name, 1)
        for number in range(5):
            producer.send(name, json.dumps({"id": number, "same": True}).encode(), key=b"k")
        producer.flush(30)
        load = PlainLoads(broker.bootstrap, name, lake, group="nightly").must_load()
        for number in range(5, 10):
            producer.send(name, b"line\n%d" % number)
        producer.flush(30)
    with Consumer(broker.bootstrap, {"group.id": "slow"}) as consumer:
        consumer.commit({TopicPartition(name, 0): 3})
    return Loaded(name, load)


def became(ui: UiProcess, topic: str, offset: int) -> str:
    text = ui.get(f"/topics/{topic}/records?from=offset&at={offset}&partition=0&limit=1").text
    return " ".join(re.sub(r"<[^>]*>", " ", text.partition("What became of it")[2].partition("</main>")[0]).split())


def test_a_record_says_which_load_and_which_groups_have_it(ui: UiProcess, loaded: Loaded, lake: Path) -> None:
    eventually(lambda: "slow" in became(ui, loaded.topic, 0))
    for offset, load, group in (
        (0, True, True),
        (2, True, True),
        (3, True, False),
        (4, True, False),
        (5, False, False),
    ):
        found = became(ui, loaded.topic, offset)
        assert (f"{loaded.load} published {lake}" in found) is load, offset
        assert ("No load has it yet." in found) is not load
        assert ("slow has read past it" in found) is group
        assert ("slow has not read it yet" in found) is not group
    page = ui.get(f"/topics/{loaded.topic}/records?from=offset&at=0&partition=0&limit=1").text
    (address,) = set(re.findall(r'href="(/loads/load\?[^"]*)"', page))
    assert ui.get(address.replace("&amp;", "&")).status == 200
    assert "What became of it" not in ui.get(f"/topics/{loaded.topic}/records?limit=2").text, "it reads every place"


def test_two_records_are_chosen_and_compared(tab: Tab, loaded: Loaded) -> None:
    page = tab.open(f"/topics/{loaded.topic}/records?from=start")
    page.locator("#r-0-0 summary").first.click()
    page.locator("#r-0-0").get_by_role("link", name="Compare with another").click()
    expect(page.get_by_text("Choose the record to compare with offset 0")).to_be_visible()
    page.locator("#r-0-1").get_by_role("button", name="Compare").click()
    rows = page.locator("table.compare").first.locator("tbody tr")
    expect(rows).to_have_count(1)
    assert rows.first.inner_text().split() == ["$.id", "0", "1"]
    page.get_by_text("2 equal").click()
    expect(page.get_by_role("rowheader", name="$.same")).to_be_visible()
    page = tab.open(f"/topics/{loaded.topic}/compare?a=0:5&b=0:6")
    expect(page.get_by_role("rowheader", name="line 2")).to_be_visible()


def test_a_comparison_with_what_is_not_there_is_refused(ui: UiProcess, loaded: Loaded) -> None:
    for query, status, text in (
        ("a=0:0&b=0:99", 404, "has no record at offset 99 of partition 0"),
        ("a=0:0&b=7:0", 404, "no 7"),
        ("a=0:0&b=x", 400, "b=x: expected a number"),
        ("a=0:0,0:1,1:1&b=0:0", 400, "expected one record as PARTITION:OFFSET"),
        ("a=&b=0:0", 400, "expected one record"),
    ):
        answer = ui.get(f"/topics/{loaded.topic}/compare?{query}")
        assert (answer.status, text in answer.text) == (status, True), query


def test_a_dead_letter_says_why_and_leads_to_the_record(tab: Tab, broker: Kafka, topic: str, loaded: Loaded) -> None:
    place = {"topic": loaded.topic, "partition": "0", "offset": "3"}
    headers = [(f"pykafka.origin.{name}", value.encode()) for name, value in place.items()]
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 1)
        producer.send(topic, b"x", headers=[*headers, ("pykafka.error", b"value: not JSON")]).result(30)
    page = tab.open(f"/topics/{topic}/records")
    expect(page.locator("#r-0-0 .headers")).to_contain_text("A dead letter: value: not JSON")
    page.get_by_role("link", name=f"offset 3 of {loaded.topic}-0").click()
    expect(page.locator("#r-0-3")).to_contain_text('"id": 3')


def test_hostile_names_and_texts_are_harmless_and_seen(tab: Tab, broker: Kafka, topic: str) -> None:
    value = json.dumps({f"{TURNED}{SCRIPT}": f"{TURNED}{SCRIPT}"}, ensure_ascii=False).encode()
    headers = [(f"{TURNED}{SCRIPT}", value), ("pykafka.error", f"{TURNED}{SCRIPT}".encode())]
    headers += [("pykafka.origin.topic", SCRIPT.encode()), ("pykafka.origin.partition", b"0")]
    headers += [("pykafka.origin.offset", b"0")]
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 1)
        producer.send(topic, value, key=f"{TURNED}{SCRIPT}".encode(), headers=headers)
        producer.send(topic, b"other", headers=headers[:1])
        producer.flush(30)
    for path in ("records", "records?against=0:1", "compare?a=0:0&b=0:1", f"records?against={SCRIPT}"):
        page = tab.open(f"/topics/{topic}/{path}")
        assert page.locator("main script").count() == 0
        assert TURNED not in page.content()
        assert "\\u202e" in page.content()
    tab.open(f"/topics/{topic}/records?from=offset&at=0&partition=0&limit=1")


def test_a_live_page_says_how_many_records_it_passed_by(tab: Tab, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap, {"linger.ms": "5000"}) as producer:
        Admin(cluster).create_topic(topic, 2)
        producer.send(topic, b"before", partition=0)
        producer.flush(30)
        page = tab.open(f"/topics/{topic}/records?limit=3&live=true")
        status = page.get_by_role("status")
        expect(status).to_contain_text("at most 3 records a second are shown, ≤ 0 records were passed by")
        for _ in range(10):
            producer.send(topic, b"after", partition=0)
        producer.flush(30)  # one batch, so a look sees all of it or nothing
        expect(page.locator("#r-0-10")).to_be_visible()
        expect(page.locator("#records tbody tr")).to_have_count(3)
        expect(status).to_contain_text("≤ 7 records were passed by")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_have_count(0)


def test_what_was_looked_at_was_not_passed_by() -> None:
    def page(older: dict[int, int] | None) -> Page:
        return Page([], 0, older, None, is_complete=True)

    assert unseen(page(None), {0: 5}) == 0, "it has looked at everything"
    assert unseen(page({0: 5, 1: 9}), {0: 5, 1: 2}) == 7
    assert unseen(page({0: 3, 1: 9}), {0: 5}) == 0, "also at what it had seen before; partition 1 is new"


def test_an_address_to_share_shows_the_same_when_there_is_more(ui: UiProcess, broker: Kafka, topic: str) -> None:
    def offsets(address: str) -> list[str]:
        return re.findall(r'<tr id="r-([^"]*)"', ui.get(f"/topics/{topic}/records{address}").text)

    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 2)
        for number in range(6):
            producer.send(topic, b"x", partition=number % 2).result(30)
        before = offsets("?limit=4")
        (lasting,) = re.findall(r'id="address" href="([^"]*)"', ui.get(f"/topics/{topic}/records?limit=4").text)
        producer.send(topic, b"later", partition=0).result(30)
    assert len(before) == 4
    assert offsets("?limit=4") != before
    assert offsets(lasting.replace("&amp;", "&")) == before


def test_the_address_is_copied_as_a_whole(tab: Tab, loaded: Loaded) -> None:
    page = tab.open(f"/topics/{loaded.topic}/records?from=offset&at=2&partition=0&limit=2")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the address").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
