"""The list of topics and the page of one, at a glance: rate, lag, groups, kept for, last record, state, kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

QUICK = {"zookeeper.session.timeout.ms": "3000"}
COLUMNS = ("name", "state", "hour", "rate", "lag", "groups", "newest", "records", "size", "kept", "partitions")


def cells(ui: UiProcess, topic: str, query: str = "") -> dict[str, str]:
    """The text of each cell of a topic's row; {} if it has none."""
    for row in re.findall(r"<tr>(.*?)</tr>", ui.get(f"/topics?{query or f'q={topic}'}").text, re.DOTALL):
        if f'href="/topics/{topic}"' in row:
            texts = [re.sub(r"<svg.*?</svg>|<[^>]*>", "", cell, flags=re.DOTALL) for cell in row.split("<td")[1:]]
            words = [" ".join(text.partition(">")[2].split()) for text in texts]
            return dict(zip(COLUMNS, words, strict=True))
    return {}


@pytest.fixture(scope="module")
def read_topic(broker: Kafka) -> str:
    """Two partitions of 50 records, of 2001, compacted; `list-far` has read 10 of them and `list-near` 90."""
    name = "list-read"
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        admin = Admin(cluster)
        admin.create_topic(name, 2, configs={"cleanup.policy": "compact,delete", "retention.ms": "3600000000000"})
        for number in range(100):
            producer.send(name, b"x", key=b"%d" % number, partition=number % 2, timestamp=978_307_200_000)
        producer.flush(30)
        for group, read in (("list-far", 5), ("list-near", 45)):
            with Consumer(broker.bootstrap, {"group.id": group}) as consumer:
                consumer.commit({TopicPartition(name, index): read for index in range(2)})
    return name


def test_a_row_says_what_people_scan_for_as_the_tools_do(ui: UiProcess, broker: Kafka, read_topic: str) -> None:
    eventually(lambda: cells(ui, read_topic).get("groups") == "2" and cells(ui, read_topic)["records"] == "100")
    found = cells(ui, read_topic)
    (described,) = json.loads(
        answer_of("groups", "describe", "--group", "list-far", "--bootstrap-server", broker.bootstrap, "--json")
    )
    assert found["lag"] == str(described["lag"]) == "90", "of the slowest group"
    assert found["newest"].endswith(" ago")
    assert found["kept"] == "the newest of each key, for 41666 d 16 h"
    assert "compacted" in found["name"]
    assert (found["state"], found["partitions"]) == ("in sync", "2 × 1")
    page = ui.get(f"/topics/{read_topic}").text
    assert "2001-01-01 00:00:00 UTC" in page
    assert page.count("list-far") >= 2, "named beside its lag, and in the list"


def test_what_is_empty_or_not_read_is_no_zero(ui: UiProcess, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
    eventually(lambda: cells(ui, topic).get("records") == "0")
    found = cells(ui, topic)
    assert (found["lag"], found["groups"], found["newest"]) == ("", "", ""), "no group reads it, and nothing is in it"
    assert re.search("Newest record</dt><dd>none", ui.get(f"/topics/{topic}").text)


def test_a_state_lists_the_topics_whose_partitions_the_overview_counts(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    first, second = (broker_factory({"broker.id": number, **QUICK}, name=number) for number in ("1", "2"))
    with Cluster(first.bootstrap) as cluster:
        admin = Admin(cluster)
        admin.create_topic("both", 3, 2)
        admin.create_topics([NewTopic("ours", assignment=[[1]]), NewTopic("theirs", assignment=[[2]])])
    with UiProcess(first.bootstrap) as ui:
        assert "3 partitions are under-replicated" not in ui.get("/topics?state=under-replicated").text
        eventually(lambda: "theirs" in ui.get("/topics").text)
        second.kill()
        # Until the controller has acted, some partitions of the other one lack a leader, too.
        eventually(lambda: cells_of_state(ui, "no-leader") == ["theirs"])
        eventually(lambda: "3 partitions are under-replicated" in ui.get("/topics?state=under-replicated").text)
        assert cells_of_state(ui, "under-replicated") == ["both"]
        page = ui.get("/topics?state=under-replicated").text
        assert "3 not in sync" in page
        assert "state=under-replicated" in re.findall(r'aria-sort[^>]*><a href="([^"]*)"', page)[0]
        eventually(lambda: cells(ui, "theirs")["newest"] == "?")
        assert ui.get("/topics?state=lost").status == 400


def test_a_phone_shows_name_rate_and_lag(chromium: Browser, ui: UiProcess, read_topic: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 760})
    page = context.new_page()
    page.goto(f"{ui.address}/topics?q={read_topic}")
    shown = page.locator("#list thead th:visible").all_inner_texts()
    assert [text.split(" ")[0] for text in shown] == ["Topic", "Records/s", "Lag"]
    assert page.locator("#list .wide").evaluate("one => one.scrollWidth <= one.clientWidth"), "nothing is cut"
    context.close()


def cells_of_state(ui: UiProcess, state: str) -> list[str]:
    return re.findall(r'<td class="name"><a href="/topics/([^"]*)"', ui.get(f"/topics?state={state}").text)
