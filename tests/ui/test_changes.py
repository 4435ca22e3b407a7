"""What `--allow-changes` allows, in a real Chromium: each change is asked for once, and done only then."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Page, expect

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.producer import Producer
from broker.protocol.described_config import ResourceType
from broker.protocol.topic_partition import TopicPartition
from tests.support.chromium import HURRY, Tab
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def changing(broker: Kafka) -> Iterator[UiProcess]:
    with UiProcess(broker.bootstrap, "--allow-changes") as process:
        yield process


@pytest.fixture(scope="module")
def window(window: Page) -> Page:
    window.add_init_script(HURRY)
    return window


@pytest.fixture
def page(window: Page, changing: UiProcess) -> Iterator[Page]:
    window.goto(changing.entrance)
    tab = Tab(window, changing.address)
    yield tab.open("/topics")
    tab.leave()
    assert tab.complaints == []


@pytest.fixture
def admin(broker: Kafka) -> Iterator[Admin]:
    with Cluster(broker.bootstrap) as cluster:
        yield Admin(cluster)


def confirm(page: Page, sentence: str) -> None:
    expect(page.get_by_text(sentence)).to_be_visible()
    page.get_by_role("button", name="Yes, do it").click()


def test_a_topic_is_made_changed_and_deleted(page: Page, admin: Admin, topic: str) -> None:
    page.get_by_role("button", name="New topic").click()
    page.locator("[name=name]").fill(topic)
    page.locator("[name=partitions]").fill("2")
    page.locator("[name=settings]").fill("retention.ms=60000\n\nsegment.bytes=2000000")
    page.get_by_role("button", name="Create…").click()
    expect(page.get_by_text("Create the topic")).to_be_visible()
    assert topic not in admin.list_topics(), "not before it is confirmed"
    confirm(page, f"Create the topic {topic} with 2 partitions and the default number of replicas of each.")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    found = admin.describe_configs(ResourceType.TOPIC, topic)
    assert (found["retention.ms"].value, found["segment.bytes"].value) == ("60000", "2000000")

    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Change").click()
    page.locator("[name=settings]").fill("retention.ms=70000")
    page.locator("[name=deleted]").fill("segment.bytes")
    page.get_by_role("button", name="Change…").click()
    expect(page.locator("tbody tr").first).to_contain_text("60000")
    confirm(page, f"Change settings of the topic {topic}.")
    expect(page.get_by_role("heading", name=f"Settings of {topic}")).to_be_visible()
    found = admin.describe_configs(ResourceType.TOPIC, topic)
    assert found["retention.ms"].value == "70000"
    assert not found["segment.bytes"].source.dynamic

    page.get_by_role("link", name=topic).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page, f"Delete the topic {topic}")
    eventually(lambda: topic not in admin.list_topics())


def test_records_are_written_and_deleted(page: Page, admin: Admin, changing: UiProcess, topic: str) -> None:
    admin.create_topic(topic, 1)
    value = "<script>document.title='run'</script>\n  two lines \n"
    for key, is_tombstone in (("k", False), ("gone", True)):
        page.goto(f"{changing.address}/topics/{topic}/produce")
        page.locator("[name=key]").fill(key)
        page.locator("[name=value]").fill(value)
        page.locator("[name=headers]").fill("a=1\nb=x=y")
        if is_tombstone:
            page.locator("[name=tombstone]").check()
        page.get_by_role("button", name="Write…").click()
        confirm(page, f"with the key {key} to the topic {topic}.")
        expect(page.locator("#records tbody tr").first).to_contain_text(key)
    with Consumer(admin.cluster.settings.bootstrap_servers[0], {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        records = list(consumer.poll(30))
    assert [(one.key, one.value) for one in records] == [(b"k", value.encode()), (b"gone", None)]
    assert list(records[0].headers) == [("a", b"1"), ("b", b"x=y")]

    page.goto(f"{changing.address}/topics/{topic}/delete-records")
    page.locator("[name=before]").fill("1")
    page.get_by_role("button", name="Delete…").click()
    confirm(page, f"Delete all records before offset 1 of 1 partitions of the topic {topic}.")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    page.goto(f"{changing.address}/topics/{topic}/records")
    expect(page.locator("#records tbody tr")).to_have_count(1)


def test_offsets_of_a_group_are_reset_after_a_preview(
    page: Page, admin: Admin, broker: Kafka, changing: UiProcess, topic: str, group: str
) -> None:
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=number % 2)
        producer.flush(30)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    admin.alter_group_offsets(group, dict.fromkeys(partitions, 4))
    page.goto(f"{changing.address}/groups?q={group}")
    page.get_by_role("link", name=group).click()
    page.get_by_role("button", name="Reset offsets").click()
    page.locator("[name=target]").select_option("shift_by")
    page.locator("[name=number]").fill("-3")
    page.get_by_role("button", name="Reset…").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text(f"{topic}-0")
    assert list(page.locator("tbody tr").first.locator("td").all_inner_texts())[1:] == ["4", "1", "3", "0", "4"]
    assert admin.group_offsets(group) == dict.fromkeys(partitions, 4), "not before it is confirmed"
    confirm(
        page,
        f"Reset the offsets of the group {group} in 2 partitions by -3 records. At most 6 records will be read again.",
    )
    expect(page.get_by_role("heading", name=group)).to_be_visible()
    assert admin.group_offsets(group) == dict.fromkeys(partitions, 1)


def test_a_group_is_deleted_with_its_offsets(
    page: Page, admin: Admin, broker: Kafka, changing: UiProcess, topic: str, group: str
) -> None:
    admin.create_topic(topic, 1)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    eventually(lambda: changing.get(f"/groups/{group}").status == 200)
    page.goto(f"{changing.address}/groups/{group}")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_contain_text(f"{topic}-0")
    assert group in [one.group_id for one in admin.list_groups()], "not before it is confirmed"
    confirm(page, f"Delete the group {group} with its committed offsets in 1 partition.")
    eventually(lambda: group not in [one.group_id for one in admin.list_groups()])
    with Consumer(broker.bootstrap, {"group.id": group}) as member:
        member.subscribe([topic])
        eventually(lambda: bool(member.poll(0.1) or member.assignment()))
        assert "stop its consumers first" in changing.get(f"/delete-group/{group}").text


@pytest.mark.parametrize(
    ("path", "form", "message"),
    [
        ("/new-topic", "name=", "a topic needs a name"),
        ("/new-topic", "name=t&partitions=x", "partitions=x: expected a number"),
        ("/topics/t/delete-records", f"before={10**30}", "there is no such offset"),
        ("/reset-group/g", f"target=to_datetime&number={'9' * 5000}", "no such"),
        ("/new-topic", "name=t&settings=nonsense", "expected KEY=VALUE"),
        ("/new-topic", "name=bad%20name&confirmed=yes", "bad name"),
        ("/topics/none/change-settings", "settings=", "name a setting to change"),
        ("/topics/none/change-settings", "settings=a%3D1", "none"),
        ("/topics/none/delete-records", "", "there is no topic"),
        ("/topics/none/delete", "confirmed=yes", "none"),
        ("/reset-group/none", "target=to_earliest", "name a topic"),
        ("/reset-group/none", "target=to_datetime&number=soon&topic=t", "expected ms since 1970"),
        ("/reset-group/none", "target=nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_done_is_said(changing: UiProcess, path: str, form: str, message: str) -> None:
    answer = changing.post(path, form)
    assert answer.status >= 400
    assert message in answer.text


QUESTION = "Is that what you want?"


@pytest.mark.parametrize(
    ("path", "form", "message", "kept"),
    [
        (
            "/new-topic",
            "name=bad+name&partitions=3&settings=a%3D1",
            "has a character other than",
            ["bad name", "3", "a=1"],
        ),
        ("/new-topic", "name=..", "cannot be named", [".."]),
        ("/new-topic", f"name={'x' * 250}", "at most 249 are allowed", ["x" * 250]),
        ("/new-topic", "name={topic}&partitions=4", "already exists", ["{topic}", "4"]),
        ("/new-topic", "name=new-{topic}&replication=9", "INVALID_REPLICATION_FACTOR", ["9"]),
        ("/new-topic", "name=new-{topic}&settings=retention.ms%3Dsoon", "retention.ms", ["retention.ms=soon"]),
        (
            "/topics/{topic}/change-settings",
            "settings=segment.bytes%3Dx&deleted=retention.ms",
            "segment.bytes",
            ["segment.bytes=x", "retention.ms"],
        ),
        ("/topics/{topic}/produce", "key=k&value=v%3Cb%3E&partition=7", "has 1 partitions", ["k", "v&lt;b&gt;", "7"]),
        ("/topics/{topic}/produce", "value=v&headers=none", "expected KEY=VALUE", ["v", "none"]),
        ("/topics/none-{topic}/produce", "value=v", "there is no topic", ["v"]),
        ("/topics/{topic}/delete-records", "before=5&partitions=0", "ends at offset 0", ["5", "0"]),
        ("/topics/{topic}/delete-records", "before=0&partitions=1", "1 partitions, but no 1", ["1"]),
        (
            "/reset-group/g",
            "target=to_latest&number=7&topic={topic}",
            "the end of the log takes none",
            ["7", "{topic}"],
        ),
        ("/reset-group/g", "target=to_offset&topic={topic}", "number: say which", ["{topic}"]),
        ("/reset-group/g", "target=shift_by&number=x&topic={topic}", "expected a number", ["x", "{topic}"]),
    ],
)
def test_a_form_keeps_what_was_typed_and_says_what_is_wrong_before_the_question(
    changing: UiProcess, admin: Admin, topic: str, path: str, form: str, message: str, kept: list[str]
) -> None:
    admin.create_topic(topic, 1)
    eventually(lambda: changing.get(f"/topics/{topic}").status == 200)
    answer = changing.post(path.format(topic=topic), form.format(topic=topic))
    assert answer.status >= 400
    assert QUESTION not in answer.text
    assert message in html.unescape(answer.text)
    assert '<form method="post" class="change">' in answer.text
    for text in kept:
        text = text.format(topic=topic)
        assert f'value="{text}"' in answer.text or f">\n{text}</textarea>" in answer.text, text
    if "target=" in form:
        assert re.search(f'<option value="{form[7:].partition("&")[0]}" selected>', answer.text)


def test_from_the_question_one_can_go_back_to_the_form(page: Page, admin: Admin, topic: str) -> None:
    page.get_by_role("button", name="New topic").click()
    page.locator("[name=name]").fill(topic)
    page.locator("[name=partitions]").fill("2")
    page.locator("[name=settings]").fill("retention.ms=60000\nsegment.bytes=2000000")
    page.get_by_role("button", name="Create…").click()
    page.get_by_role("button", name="Back to the form").click()
    expect(page.locator("[name=name]")).to_have_value(topic)
    expect(page.locator("[name=settings]")).to_have_value("retention.ms=60000\nsegment.bytes=2000000")
    page.locator("[name=partitions]").fill("3")
    page.get_by_role("button", name="Create…").click()
    confirm(page, f"Create the topic {topic} with 3 partitions")
    eventually(lambda: len(admin.describe_topics([topic])[topic].partitions) == 3)


def test_one_is_not_called_many(page: Page, admin: Admin, topic: str) -> None:
    page.get_by_role("button", name="New topic").click()
    page.locator("[name=name]").fill(topic)
    page.locator("[name=partitions]").fill("1")
    page.locator("[name=replication]").fill("1")
    page.get_by_role("button", name="Create…").click()
    confirm(page, f"Create the topic {topic} with 1 partition and 1 replica of each.")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    expect(page.locator(".pager")).to_have_text(re.compile(r"\s*1 partition\s*"))


def test_another_sites_page_changes_nothing(changing: UiProcess, admin: Admin, topic: str) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"},
    ):
        assert changing.post("/new-topic", f"name={topic}&confirmed=yes", headers).status == 403
    assert topic not in admin.list_topics()


def test_without_the_option_there_is_nothing_to_change_with(ui: UiProcess, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    eventually(lambda: f"/topics/{topic}" in ui.get(f"/topics?q={topic}").text)
    for path in ("/topics", f"/topics/{topic}", f"/topics/{topic}/settings"):
        page = ui.get(path).text
        assert '<form method="post"' not in page
        assert not any(word in page for word in ("New topic", "/produce", "/delete", "/change-settings"))
    for path in ("/new-topic", f"/topics/{topic}/produce", f"/topics/{topic}/delete", "/reset-group/g"):
        assert ui.get(path).status == 404
        assert ui.post(path, "confirmed=yes").status in (404, 405)
    assert topic in admin.list_topics()


def test_a_confirmation_that_is_sent_twice_is_done_once(
    changing: UiProcess, admin: Admin, broker: Kafka, topic: str
) -> None:
    """As a double click does it."""
    admin.create_topic(topic, 1)
    asked = changing.post(f"/topics/{topic}/produce", "value=once").text
    token = re.search(r'name="once" hidden>\s*([^<]+)</textarea>', asked)
    assert token is not None
    form = f"value=once&confirmed=yes&once={token[1]}"
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: changing.post(f"/topics/{topic}/produce", form).status, range(4)))
    assert answers == [200] * 4
    (end,) = list_offsets(admin.cluster, {TopicPartition(topic, 0): LATEST}).values()
    assert end.offset == 1


def test_a_deletion_that_is_confirmed_twice_is_done(changing: UiProcess, admin: Admin, topic: str, group: str) -> None:
    admin.create_topic(topic, 1)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    for path in (f"/delete-group/{group}", f"/topics/{topic}/delete"):
        asked = changing.get(path).text
        token = re.search(r'name="once" hidden>\s*([^<]+)</textarea>', asked)
        assert token is not None
        assert [changing.post(path, f"confirmed=yes&once={token[1]}").status for _ in range(2)] == [200, 200]
    eventually(lambda: topic not in admin.list_topics())


@pytest.mark.parametrize("path", ["/topics/none/delete", "/delete-group/none"])
def test_what_is_not_there_is_not_asked_about(changing: UiProcess, path: str) -> None:
    answer = changing.get(path)
    assert answer.status == 404
    assert QUESTION not in answer.text


def test_a_change_that_failed_may_be_confirmed_again(changing: UiProcess, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    for _ in range(2):
        assert changing.post("/new-topic", f"name={topic}&confirmed=yes&once=again").status == 409
