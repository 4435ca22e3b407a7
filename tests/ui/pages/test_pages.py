"""The pages in a real Chromium: what people see and do, hostile records, a broker that dies and comes back.

No page may complain: no console error, no exception, no request to another host. `tab` checks that.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.chromium import Tab
from tests.support.kafka import Kafka, await_topics, need
from tests.support.randomness import noise
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

COUNT = 120
LONG = "ui-" + "long-" * 40
SCRIPT = "<script>document.title='run'</script>"
HOSTILE = [
    SCRIPT.encode(),
    b'"><img src=x onerror="document.title=\'run\'">',
    b"{{ 7 * 7 }}{% raw %}",
    bytes(range(256)),
    b"\xff\xfe\x00 invalid",
    json.dumps({SCRIPT: [SCRIPT, {"'\"": None}]}).encode(),
    b"[" * 200_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    "\u202eevil\u0000\u001b[31m".encode(),
    b"x" * 1_000_000,
    b'{"half": "\\ud800"}',
    b"",
    None,
]


@pytest.fixture(scope="module")
def flights(broker: Kafka) -> str:
    """A topic with JSON values, and a group that has read half of it. The biggest topic has a long name."""
    name = "ui-flights"
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(name, 3, configs={"retention.ms": "86400000"})
        Admin(cluster).create_topic(LONG)
    with Producer(broker.bootstrap) as producer:
        for number in range(COUNT):
            value = {"id": number, "carrier": {"code": "UA" if number % 2 else "AA"}, "tags": ["a", None, True]}
            key = b"key-%d" % number
            producer.send(
                name, json.dumps(value).encode(), key=key, headers=[("trace", b"t%d" % number)], partition=number % 3
            )
        for _ in range(100):
            producer.send(LONG, noise(500_000))
        producer.flush(30)
    with Consumer(broker.bootstrap, {"group.id": "ui-group", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([name])
        read = 0
        while read < COUNT // 2:
            read += len(consumer.poll(1))
        consumer.commit()
    return name


def test_the_overview_leads_to_topics_and_groups(tab: Tab, flights: str) -> None:
    page = tab.open("/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("figure.chart canvas")).to_have_count(2)
    expect(page.get_by_role("link", name=LONG)).to_be_visible()  # once the sizes were looked at
    page.get_by_role("link", name=LONG).click()
    expect(page.get_by_role("heading", name=LONG)).to_be_visible()
    page = tab.open(f"/topics/{flights}")
    page.get_by_role("link", name="ui-group").click()
    expect(page.get_by_role("heading", name="ui-group")).to_be_visible()


def test_topics_are_found_as_one_types(tab: Tab, flights: str, broker: Kafka) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("ui-other")
    await_topics(broker.bootstrap, "ui-other")
    tab.hurry()
    page = tab.open("/topics?q=ui-o")
    expect(page.get_by_role("link", name="ui-other")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("searchbox").press_sequentially("FLIGHT", delay=20)
    expect(page.get_by_role("link", name="ui-other")).to_be_hidden()
    expect(page.get_by_role("link", name=flights)).to_be_visible()
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page).to_have_url(re.compile("q=FLIGHT"))  # an address that can be sent
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("FLIGHT")
    page.get_by_role("searchbox").fill("no such topic")
    expect(page.get_by_text("No topic has “no such topic” in its name.")).to_be_visible()


def test_what_is_found_stays_although_the_page_asks_again_meanwhile(tab: Tab, flights: str) -> None:
    """A search takes long, and the page, which asks again every second, would go back to what was found before."""
    held: list[Route] = []
    asked: list[str] = []

    def hold_the_search(route: Route) -> None:
        asked.append(route.request.url)
        if "q=FLIGHT" in route.request.url and not held:
            held.append(route)
        else:
            route.continue_()

    tab.hurry()
    page = tab.open("/topics?q=no+such+topic")
    page.route(re.compile("/topics"), hold_the_search)
    page.get_by_role("searchbox").fill("FLIGHT")
    while not held:
        page.wait_for_timeout(50)
    page.wait_for_timeout(2_500)  # it is time to ask again
    searched = len(asked)
    held[0].continue_()
    expect(page.get_by_role("link", name=flights)).to_be_visible()
    while len(asked) < searched + 2:
        page.wait_for_timeout(50)
    assert all("q=FLIGHT" in url for url in asked[searched:])
    page.unroute_all(behavior="ignoreErrors")


def test_topics_are_sorted_and_internal_ones_hidden(tab: Tab, flights: str) -> None:
    page = tab.open("/topics")
    expect(page.get_by_role("link", name="__consumer_offsets")).to_be_hidden()
    page.get_by_role("link", name="Show internal topics").click()
    expect(page.get_by_role("link", name="__consumer_offsets")).to_be_visible()
    page.get_by_role("columnheader", name="Records ≤").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="Records ≤")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("columnheader", name="Records ≤").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="Records ≤")).to_have_attribute("aria-sort", "descending")
    records = page.locator("tbody tr td:nth-child(8)")
    expect(records.get_by_text("?")).to_have_count(0)  # of a topic that was just made
    counts = [int(text.replace(",", "")) for text in records.all_inner_texts()]
    assert counts == sorted(counts, reverse=True)


def test_a_topic_shows_partitions_settings_and_readers(tab: Tab, flights: str) -> None:
    page = tab.open(f"/topics/{flights}")
    expect(page.locator("#list tbody tr")).to_have_count(3)
    expect(page.locator("#list tbody tr").first).to_contain_text("in sync")
    expect(page.locator(".figures div", has_text="Kept").locator("dd")).to_have_text("1 d")
    expect(page.locator(".figures div", has_text="Newest record").locator("time")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    row = page.locator("tr").filter(has=page.get_by_text("retention.ms", exact=True))
    expect(row).to_contain_text("86400000")
    expect(row).to_contain_text("dynamic topic config")


def test_records_are_paged_filtered_and_folded(tab: Tab, flights: str) -> None:
    page = tab.open(f"/topics/{flights}/records?limit=50")
    expect(page.locator("#records tbody tr")).to_have_count(50)
    page.get_by_role("link", name="older").click()
    expect(page.locator("#records tbody tr")).to_have_count(50)
    page.get_by_role("link", name="older").click()
    expect(page.locator("#records tbody tr")).to_have_count(COUNT - 100)
    page.locator("input[name=path]").fill("$.carrier.code")
    page.locator("input[name=equals]").fill("UA")
    page.locator("input[name=text]").fill("key-11")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#records tbody tr")).to_have_count(6)  # 11, 111, 113, 115, 117, 119
    row = page.locator("#records tbody tr").last
    expect(row).to_contain_text("key-11")
    row.locator("summary").first.click()
    expect(row.locator(".json .string", has_text="UA")).to_be_visible()
    expect(row.locator("dt", has_text="trace")).to_be_visible()
    row.locator(".json summary").nth(1).click()
    expect(row.locator(".json .string", has_text="UA")).to_be_hidden()


def test_a_wrong_filter_is_said(tab: Tab, flights: str) -> None:
    tab.page.goto(f"{tab.address}/topics/{flights}/records?path=x[")
    expect(tab.page.get_by_text("path=x[: expected '$'")).to_be_visible()
    tab.complaints = [text for text in tab.complaints if "400" not in text]


def test_a_form_of_records_keeps_what_was_typed(tab: Tab, flights: str) -> None:
    page = tab.open(f"/topics/{flights}/records")
    page.locator("input[name=text]").fill("key-1")
    page.locator("input[name=partition]").fill("7")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert").filter(has_text="has 3 partitions, but no 7")).to_be_visible()
    expect(page.locator("input[name=text]")).to_have_value("key-1")
    page.locator("input[name=partition]").fill("1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#records tbody tr").first).to_contain_text("key-1")
    tab.complaints = [text for text in tab.complaints if "404" not in text]


@pytest.mark.parametrize("start", ["the end", "the start"])
def test_an_offset_or_a_time_that_is_typed_is_taken(tab: Tab, flights: str, start: str) -> None:
    """Whatever the list beside it says: it is "the end" until somebody changes it."""
    page = tab.open(f"/topics/{flights}/records?partition=1&limit=2")
    page.locator("select[name=from]").select_option(start)
    page.locator("input[name=at]").fill("3")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#records tbody tr").first.locator("td").nth(2)).to_have_text("3")
    expect(page.locator("select[name=from]")).to_have_value("offset")
    page.locator("select[name=from]").select_option(start)
    page.locator("input[name=at]").fill("2001-01-01T00:00")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#records tbody tr").first.locator("td").nth(2)).to_have_text("0")
    expect(page.locator("select[name=from]")).to_have_value("time")


def test_a_chart_begins_with_what_brokers_know_and_ends_now(broker: Kafka, topic: str, chromium: Browser) -> None:
    """Also in a console that was just started."""
    now = time.time()
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 2)
        for number in range(1_200):  # from 40 to 20 minutes ago
            producer.send(topic, b"x", partition=number % 2, timestamp=int(now * 1000) - 2_400_000 + number * 1_000)
        producer.flush(30)
    with UiProcess(broker.bootstrap) as ui:
        eventually(lambda: ui.get(f"/topics/{topic}").status == 200)
        eventually(lambda: ui.get(f"/api/history/records?name={topic}").json["times"] != [])
        found = ui.get(f"/api/history/records?name={topic}").json
        known = [(at - now, rate) for at, rate in zip(found["times"], found["values"], strict=True) if rate]
        assert found["times"][0] < now - 3_000
        assert all(-2_470 < at < -1_130 for at, _ in known)
        assert sum(rate for _, rate in known) * 60 == pytest.approx(1_200)
        assert ui.get("/api/history/records").json["times"], "of all topics, too"
        page = chromium.new_page()
        page.goto(f"{ui.address}/topics/{topic}")
        expect(page.locator("figure.chart canvas")).to_have_count(1)
        low, high, at = page.evaluate(
            "() => { const x = [...charts.values()][0].plot.scales.x; return [x.min, x.max, Date.now() / 1000]; }"
        )
        assert at - 30 < high <= at
        assert high - low == pytest.approx(3_600)
        page.close()


def test_a_time_is_written_in_one_way(tab: Tab, flights: str) -> None:
    """With its zone, and for programs."""
    text = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})? UTC"
    for path in ("/", f"/topics/{flights}", f"/topics/{flights}/records?limit=5", "/groups/ui-group", "/transactions"):
        page = tab.open(path)
        shown = page.locator("time").all_inner_texts()
        assert shown
        assert [one for one in shown if not re.fullmatch(text, one)] == []
        assert re.match(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", page.locator("time").first.get_attribute("datetime") or ""
        )
        dates = re.findall(r"\d{4}-\d\d-\d\d[ T]\d", page.locator("body").inner_text())
        assert len(dates) == len(shown), path


def test_settings_are_found_as_one_types(tab: Tab, broker: Kafka, flights: str) -> None:
    page = tab.open("/brokers")
    page.locator("tbody a").first.click()
    rows = page.locator("#list tbody tr")
    expect(page.get_by_text("auto.create.topics.enable", exact=True)).to_be_visible()
    before = rows.count()
    page.get_by_role("searchbox").press_sequentially("Retention.", delay=20)
    expect(page.get_by_text("auto.create.topics.enable", exact=True)).to_be_hidden()
    expect(page.locator("code", has_text="log.retention.hours").first).to_be_visible()
    assert 0 < rows.count() < before
    page.get_by_role("searchbox").fill("")
    page.get_by_role("link", name="Show only those that were set").click()
    expect(page.locator("code", has_text="log.retention.hours")).to_have_count(0)
    page = tab.open(f"/topics/{flights}/settings?changed=1")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    expect(page.locator("#list tbody tr")).to_contain_text("1 d 86400000")
    page.get_by_role("searchbox").fill("no such")
    expect(page.get_by_text("No such setting.")).to_be_visible()


def test_a_record_on_a_phone_is_its_key_and_value_first(chromium: Browser, ui: UiProcess, flights: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 760})
    page = context.new_page()
    page.goto(f"{ui.address}/topics/{flights}/records?limit=3")
    row = page.locator("#records tbody tr").first
    expect(row).to_be_in_viewport(ratio=1)
    key, value, at = (row.locator(one).bounding_box() for one in ("td.key", "td.value:not(.key)", "td.time"))
    assert key is not None
    assert value is not None
    assert at is not None
    assert key["y"] < value["y"] < at["y"]
    assert value["width"] > 350
    page.get_by_text("What is shown").click()
    expect(page.get_by_role("button", name="Show")).to_be_visible()
    context.close()


def test_a_setting_on_a_phone_is_its_name_and_value_first(
    chromium: Browser, ui: UiProcess, broker: Kafka, flights: str
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        (node, *_) = cluster.brokers()
    context = chromium.new_context(viewport={"width": 390, "height": 760})
    page = context.new_page()
    for path, setting in (
        (f"/topics/{flights}/settings", "retention.ms"),
        (f"/brokers/{node.id}?q=num.", "num.partitions"),
    ):
        page.goto(f"{ui.address}{path}")
        row = page.locator("#list tbody tr", has=page.get_by_text(setting, exact=True))
        row.scroll_into_view_if_needed()
        name, value, text = (row.locator(one).bounding_box() for one in ("td.key", "td.value", "td.text"))
        assert name is not None
        assert value is not None
        assert text is not None
        assert name["y"] < value["y"] < text["y"]
        assert max(one["x"] + one["width"] for one in (name, value, text)) <= 390
        corner = page.get_by_role("searchbox").evaluate("one => getComputedStyle(one).borderTopRightRadius")
        assert corner != "0px", "the search box has a round end and a square one"
    context.close()


def test_bytes_are_in_a_font_of_one_width(tab: Tab, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 1)
        producer.send(topic, b"\xff\x00\x01", key=b"\x00\x02").result(30)
    page = tab.open(f"/topics/{topic}/records")
    for place in ("td.key", "summary.hex"):
        font = page.locator(f"#records {place}").evaluate("cell => getComputedStyle(cell).fontFamily")
        assert "mono" in font.lower(), place


def test_a_count_of_offsets_is_not_called_a_count_of_records(
    tab: Tab, ui: UiProcess, broker: Kafka, topic: str
) -> None:
    """Each transaction takes one more, for its marker. The records themselves are without it."""
    with (
        Cluster(broker.bootstrap) as cluster,
        Producer(broker.bootstrap, {"transactional.id": f"m-{topic}"}) as producer,
    ):
        Admin(cluster).create_topic(topic, 1)
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            producer.send(topic, b"x").result(30)
            producer.commit_transaction()
    eventually(lambda: ui.get(f"/topics/{topic}").status == 200)  # a new topic is waited for a second at most
    page = tab.open(f"/topics/{topic}")
    expect(page.locator(".figures")).to_contain_text("≤ 6")
    expect(page.get_by_title("markers of transactions").first).to_be_attached()
    page = tab.open(f"/topics/{topic}/records")
    expect(page.locator("#records tbody tr")).to_have_count(3)
    expect(page.get_by_text("3 of 3 records that were looked at")).to_be_visible()


def test_a_live_page_shows_new_records_and_can_be_paused(tab: Tab, flights: str, broker: Kafka) -> None:
    page = tab.open(f"/topics/{flights}/records?limit=5")
    page.get_by_role("button", name="Live").click()
    with Producer(broker.bootstrap) as producer:
        producer.send(flights, b"while it is live").result(30)
        expect(page.get_by_text("while it is live").first).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Live")).to_be_visible()
        assert "live" not in page.url


def test_snippets_and_downloads(tab: Tab, flights: str, ui: UiProcess, tmp_path: Path) -> None:
    page = tab.open(f"/topics/{flights}/records?from=offset&at=3&partition=1&limit=2")
    page.get_by_text("Read the same with a program").click()
    snippet = page.locator("#spark").inner_text()
    assert '.option("startingOffsets", \'{"ui-flights": {"1": 3}}\')' in snippet
    assert '.option("endingOffsets", \'{"ui-flights": {"1": 5}}\')' in snippet
    with page.expect_download() as downloading:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(downloading.value.path()).read_text().splitlines()
    assert [(json.loads(line)["partition"], json.loads(line)["offset"]) for line in lines] == [(1, 3), (1, 4)]
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Parquet").click()
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(downloading.value.path())
    assert table.column("offset").to_pylist() == [3, 4]
    assert table.column("key").to_pylist() == [b"key-10", b"key-13"]


def test_hostile_records_are_text(tab: Tab, broker: Kafka) -> None:
    name = "ui-hostile"
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(name, configs={"max.message.bytes": "2000000"})
    with Producer(broker.bootstrap, {"max.request.size": 2_000_000}) as producer:
        for value in HOSTILE:
            producer.send(
                name,
                value,
                key=value if value is None or len(value) < 1000 else None,
                headers=[(SCRIPT, value and value[:500])],
            )
        producer.flush(30)
    for how in ("auto", "text", "json", "avro", "hex"):
        page = tab.open(f"/topics/{name}/records?as={how}")
        expect(page.locator("#records tbody tr")).to_have_count(len(HOSTILE))
        for summary in page.locator("#records tbody td > details > summary").all():
            summary.click()
        expect(page.get_by_text(SCRIPT).first).to_be_visible()
        assert page.locator("main script, main img").count() == 0
    for number in range(len(HOSTILE)):
        tab.open(f"/topics/{name}/records?from=offset&at={number}&partition=0&limit=1")


def test_names_from_an_address_are_text(tab: Tab, flights: str) -> None:
    for path in (f"/topics?q={SCRIPT}&sort={SCRIPT}", f"/topics/{SCRIPT.replace('/', '%2F')}", f"/groups/{SCRIPT[:8]}"):
        page = tab.open(path)
        assert page.locator("main script").count() == 0
    tab.complaints = [text for text in tab.complaints if "404" not in text]


def test_groups_members_and_lag(tab: Tab, flights: str) -> None:
    page = tab.open("/groups")
    expect(page.get_by_role("link", name="ui-group")).to_be_visible()
    page.get_by_role("link", name="ui-group").click()
    expect(page.get_by_text("It has no members.")).to_be_visible()
    expect(page.locator("figure.chart canvas")).to_have_count(1)


def test_a_group_that_the_coordinator_assigns(tab: Tab, ui: UiProcess, broker: Kafka, flights: str, group: str) -> None:
    need(broker.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    with Consumer(broker.bootstrap, {"group.id": group, "group.protocol": "consumer", "client.id": "reader"}) as member:
        member.subscribe([flights])
        eventually(lambda: bool(member.poll(0.1) or len(member.assignment()) == 3))
        eventually(lambda: ui.get(f"/groups/{group}").status == 200)
        page = tab.open(f"/groups/{group}")
        epoch = member.group_metadata().member.generation_id
        for name, value in (("Protocol", "consumer"), ("State", "Stable"), ("Epochs", f"{epoch}, {epoch}")):
            expect(page.locator(".figures div", has=page.get_by_text(name, exact=True))).to_contain_text(value)
        row = page.locator("tr", has=page.get_by_text("reader", exact=True))
        assert row.locator("td.number").all_text_contents()[2:] == ["3", str(epoch), "0", "0"]


def test_what_a_group_has_not_begun_to_read_is_shown_everywhere(
    tab: Tab, ui: UiProcess, broker: Kafka, topic: str, group: str
) -> None:
    """Partitions that a member reads without a committed offset."""
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 3)
        for number in range(30_000):
            producer.send(topic, b"x", partition=number % 3)
        producer.flush(30)
    with Consumer(broker.bootstrap, {"group.id": group, "enable.auto.commit": "false"}) as member:
        member.subscribe([topic])
        eventually(lambda: bool(member.poll(0.1) or len(member.assignment()) == 3))
        member.commit({TopicPartition(topic, 0): 9_099})
        eventually(lambda: ui.get(f"/groups/{group}").status == 200)
        page = tab.open(f"/groups/{group}")
        rows = page.locator("#list tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.first).to_contain_text("10,000 unread")
        expect(rows.first).to_contain_text("no commit")
        expect(rows.last).to_contain_text("901")
        expect(page.get_by_text("2 of its 3 partitions have no committed offset.")).to_be_visible()
        expect(page.locator(".figures")).to_contain_text("20,000")
        for path in ("/", f"/groups?q={group}", f"/topics/{topic}"):
            row = tab.open(path).locator("tr", has=page.get_by_role("link", name=group))
            expect(row).to_contain_text("901 + 20,000 unread")
        (cluster_path,) = [one["metadata"]["self"] for one in ui.get("/api/v3/clusters").json["data"]]
        at = f"{cluster_path.removeprefix(ui.address)}/consumer-groups/{group}"
        lags = ui.get(f"{at}/lags").json["data"]
        assert [(one["current_offset"], one["lag"], one["unread"], one["log_end_offset"]) for one in lags] == [
            (9_099, 901, None, 10_000),
            (None, None, 10_000, 10_000),
            (None, None, 10_000, 10_000),
        ]
        assert ui.get(f"{at}/lags/{topic}/partitions/2").json["unread"] == 10_000, "the link of an assignment"
        summary = ui.get(f"{at}/lag-summary").json
        assert (summary["total_lag"], summary["total_unread"], summary["partitions_without_commit"]) == (901, 20_000, 2)
        metrics = ui.get("/metrics").text.splitlines()
        labels = f'{{consumergroup="{group}",partition="2",topic="{topic}"}}'
        assert f"kafka_consumergroup_lag{labels} -1.0" in metrics
        assert f"kafka_consumergroup_current_offset{labels} -1.0" in metrics
        assert f"pykafka_ui_consumergroup_unread{labels} 10000.0" in metrics
        assert f'kafka_consumergroup_lag_sum{{consumergroup="{group}",topic="{topic}"}} 901.0' in metrics


def test_brokers_and_transactions(tab: Tab, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
    tab.hurry()
    page = tab.open("/brokers")
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", name="Log directories")).to_be_visible()
    expect(page.locator("code", has_text="listeners").first).to_be_visible()
    with Producer(broker.bootstrap, {"transactional.id": f"id-{topic}"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(30)
        page = tab.open("/transactions")
        row = page.locator("tbody tr", has_text=f"id-{topic}")
        expect(row).to_contain_text("Ongoing")
        producer.abort_transaction()
        expect(row).to_have_count(0)


def test_it_can_be_used_by_keyboard_on_a_phone_and_in_the_dark(chromium: Browser, ui: UiProcess, flights: str) -> None:
    context = chromium.new_context(viewport={"width": 380, "height": 700}, color_scheme="dark")
    page = context.new_page()
    for path in ("/", "/topics", f"/topics/{flights}", f"/topics/{flights}/records", "/groups/ui-group", "/brokers"):
        page.goto(f"{ui.address}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, f"{path} is wider than the screen"
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150, background
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(4):  # the name of the console leads to the overview, too
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Groups")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    context.close()


def test_a_page_says_that_the_broker_is_gone_and_comes_back(
    chromium: Browser, broker_factory: Callable[..., BrokerProcess]
) -> None:
    process = broker_factory()
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("kept")
    with UiProcess(process.bootstrap) as ui:
        context = chromium.new_context()
        tab = Tab(context.new_page(), ui.address)
        tab.hurry()
        page = tab.open("/topics")
        expect(page.get_by_role("link", name="kept")).to_be_visible()
        process.kill()
        expect(page.get_by_text("The cluster does not answer")).to_be_visible(timeout=60_000)
        expect(page.get_by_role("link", name="kept")).to_be_visible()
        page.get_by_role("link", name="kept").click()
        expect(page.get_by_role("heading", name="kept")).to_be_visible()
        expect(page.get_by_text("The cluster does not answer")).to_be_visible()
        process.start()
        expect(page.get_by_text("The cluster does not answer")).to_be_hidden(timeout=60_000)
        assert tab.complaints == []
        ui.stop()
        expect(page.get_by_text("This page's server does not answer.")).to_be_visible(timeout=60_000)
        context.close()


def test_a_proxys_error_does_not_end_a_page(tab: Tab, flights: str) -> None:
    """Also one that is no page of the console: it says so, and goes on when the console is there again."""
    tab.hurry()
    page = tab.open(f"/topics/{flights}")
    page.route("**/topics/**", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    expect(page.get_by_text("This page's server does not answer.")).to_be_visible()
    expect(page.get_by_role("heading", name=flights)).to_be_visible()
    page.unroute("**/topics/**")
    expect(page.get_by_text("This page's server does not answer.")).to_be_hidden()
    expect(page.get_by_role("heading", name=flights)).to_be_visible()
    tab.complaints = [said for said in tab.complaints if "502" not in said]


def test_a_page_of_a_group_that_is_away_comes_when_it_is_there(
    tab: Tab, broker: Kafka, flights: str, group: str
) -> None:
    """As when its coordinator moves."""
    tab.hurry()
    page = tab.open(f"/groups/{group}")
    expect(page.get_by_text(f"There is no group '{group}'.")).to_be_visible()
    with Cluster(broker.bootstrap) as cluster:
        GroupOffsets(cluster, group).commit({TopicPartition(flights, 0): 1})
    expect(page.get_by_role("heading", name=group)).to_be_visible()
    tab.complaints = [said for said in tab.complaints if "404" not in said]


def test_an_opened_record_stays_open_while_others_come(tab: Tab, broker: Kafka, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b'{"first": true}').result(30)
        producer.send(topic, b'{"second": true}').result(30)
        page = tab.open(f"/topics/{topic}/records?live=true")
        opened = page.locator("#r-0-0 details").first
        opened.locator("summary").first.click()
        expect(opened).to_have_attribute("open", "")
        producer.send(topic, b'{"third": true}').result(30)
        expect(page.locator("#r-0-2")).to_be_visible()
        expect(opened).to_have_attribute("open", "")
        expect(page.locator("#r-0-2 details").first).not_to_have_attribute("open", "")


def test_hanging_transactions_are_looked_for_when_asked(tab: Tab, flights: str) -> None:
    page = tab.open("/transactions")
    page.get_by_role("link", name="Look for them").click()
    expect(page.get_by_text("No transaction hangs.")).to_be_visible()


def test_a_space_presses_what_looks_like_a_button(tab: Tab, flights: str) -> None:
    page = tab.open(f"/topics/{flights}")
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press(" ")
    expect(page.get_by_role("heading", name=f"Settings of {flights}")).to_be_visible()
