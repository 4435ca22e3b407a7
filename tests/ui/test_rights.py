"""The console with all the rights that it can use, without one of them, and with none: no page breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.producer import Producer
from broker.client.transaction_requests import add_partitions, init_transactional_id
from broker.protocol.topic_partition import TopicPartition
from broker.security.acl_types import AclOperation
from pykafka_ui.access import Credentials
from pykafka_ui.app import make_app
from pykafka_ui.console import Console
from pykafka_ui.records.values import Decoder
from tests.conftest import unique_name
from tests.support.denying import Denying, denying_kafka
from tests.support.job_rights import ANY_TOPIC, CLUSTER, GROUP, JOBS, TRANSACTIONS, Place, Right
from tests.support.waiting import eventually

NAMES = {kind: unique_name(f"ui-{kind}") for kind in ("topic", "group", "transaction")}
RIGHTS = next(job for job in JOBS if job.name == "console in the browser").rights
CONTENT = "a record of the topic"

Get = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def denying(tmp_path_factory: pytest.TempPathFactory, foreign_guarded: tuple[str, str] | None) -> Iterator[Denying]:
    """With a topic, a group that has read some of it, and a transaction that is open."""
    with denying_kafka(tmp_path_factory.mktemp("denying") / "data", foreign_guarded) as kafka:
        bootstrap = kafka.listeners["PLAINTEXT"]
        tp = TopicPartition(NAMES["topic"], 0)
        with Cluster(bootstrap) as cluster:
            Admin(cluster).create_topic(tp.topic, 1)
            with Producer(bootstrap) as producer:
                for _ in range(5):
                    producer.send(tp.topic, CONTENT.encode())
                producer.flush(30)
            GroupOffsets(cluster, NAMES["group"]).commit({tp: 2})
            add_partitions(cluster, init_transactional_id(cluster, NAMES["transaction"], timeout_ms=600_000), [tp])
        yield kafka


@contextlib.contextmanager
def console(denying: Denying, *rights: Right) -> Iterator[Get]:
    """Asks the console of a user with these rights: status and text of a page."""
    user = denying.user(rights, NAMES)
    made = Console(ClientSettings.of(denying.properties(user)), Decoder())
    app = make_app(made, Credentials(), "127.0.0.1")
    made.start()
    try:
        made.sampler.watch(groups=True)
        eventually(lambda: all(look.count for look in made.sampler._looks))
        looked = [look.count for look in made.sampler._looks]
        made.sampler.look_again()  # waits a moment only
        eventually(lambda: all(look.count > before for look, before in zip(made.sampler._looks, looked, strict=True)))
        yield lambda path: asyncio.run(_get(app, path))
    finally:
        made.stop()


async def _get(app: Any, path: str) -> tuple[int, str]:
    status, body = 0, b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return status, body.decode()


def pages(get: Get) -> dict[str, int]:
    """The status of every page."""
    topic, group = NAMES["topic"], NAMES["group"]
    return {
        path: get(path)[0]
        for path in (
            *("/", "/topics", f"/topics/{topic}", f"/topics/{topic}/settings", f"/topics/{topic}/records"),
            *("/groups", f"/groups/{group}", "/brokers", f"/brokers/{_broker(get)}"),
            *("/transactions", "/transactions?hanging=1", "/metrics", "/api/v3/clusters"),
        )
    }


def _broker(get: Get) -> int:
    return int(get("/brokers")[1].partition('href="/brokers/')[2].partition('"')[0])


def lacking(operation: AclOperation, place: Place) -> list[Right]:
    """All rights but this one, and those that include it."""
    left = [one for one in RIGHTS if (one.operation, one.place) != (operation, place)]
    assert len(left) == len(RIGHTS) - 1
    if operation is AclOperation.DESCRIBE:
        left = [one for one in left if (one.operation, one.place) != (AclOperation.READ, place)]
    return left


def test_with_all_rights_everything_is_shown(denying: Denying) -> None:
    with console(denying, *RIGHTS) as get:
        assert set(pages(get).values()) == {200}
        assert CONTENT in get(f"/topics/{NAMES['topic']}/records")[1]
        assert "retention.ms" in get(f"/topics/{NAMES['topic']}/settings")[1]
        broker = get(f"/brokers/{_broker(get)}")[1]
        assert "log.retention.hours" in broker
        assert "in use" in broker
        assert "It has no members." in get(f"/groups/{NAMES['group']}")[1]
        assert NAMES["transaction"] in get("/transactions")[1]


def test_without_any_right_there_is_nothing_and_no_page_breaks(denying: Denying) -> None:
    with console(denying) as get:
        named = (f"/topics/{NAMES['topic']}", f"/groups/{NAMES['group']}")
        found = pages(get)
        assert {path for path, status in found.items() if status != 200} == {
            path for path in found if path.startswith(named)
        }
        records = f"/topics/{NAMES['topic']}/records"
        assert found.pop(records) == 403
        assert "lacks Describe on topic" in get(records)[1]
        assert {status for status in found.values() if status != 200} == {404}
        assert NAMES["transaction"] not in get("/transactions")[1]
        assert "The cluster does not answer" not in get("/")[1]
        assert "All is well" not in get("/")[1], "nobody could look"


def test_without_describe_on_a_topic_it_is_not_listed(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.DESCRIBE, ANY_TOPIC)) as get:
        assert NAMES["topic"] not in get("/topics")[1]
        assert get(f"/groups/{NAMES['group']}")[0] == 200
        assert get("/")[0] == 200


def test_without_read_on_a_topic_its_records_are_refused_with_the_reason(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.READ, ANY_TOPIC)) as get:
        records = f"/topics/{NAMES['topic']}/records"
        status, text = get(records)
        assert status == 403
        assert f"lacks Read on topic {NAMES['topic']}" in text
        assert {status for path, status in pages(get).items() if path != records} == {200}


def test_without_describe_configs_settings_are_left_out(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.DESCRIBE_CONFIGS, ANY_TOPIC)) as get:
        assert set(pages(get).values()) == {200}
        assert "retention.ms" not in get(f"/topics/{NAMES['topic']}/settings")[1]
    with console(denying, *lacking(AclOperation.DESCRIBE_CONFIGS, CLUSTER)) as get:
        assert set(pages(get).values()) == {200}
        assert "log.retention.hours" not in get(f"/brokers/{_broker(get)}")[1]
        assert "Archives are not known: " in get("/")[1]


def test_without_describe_on_a_group_its_page_says_so(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.DESCRIBE, GROUP)) as get:
        assert NAMES["group"] in get("/groups")[1]
        assert set(pages(get).values()) == {200}
        assert "lacks the right Describe on this group" in get(f"/groups/{NAMES['group']}")[1]


def test_without_describe_on_the_cluster_sizes_are_left_out(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.DESCRIBE, CLUSTER)) as get:
        assert set(pages(get).values()) == {200}
        assert ">in use<" not in get(f"/brokers/{_broker(get)}")[1]
        assert "Sizes and disks are not known: " in get("/")[1]
        assert NAMES["group"] in get("/groups")[1]


def test_without_describe_on_a_transactional_id_it_is_not_listed(denying: Denying) -> None:
    with console(denying, *lacking(AclOperation.DESCRIBE, TRANSACTIONS)) as get:
        assert set(pages(get).values()) == {200}
        assert NAMES["transaction"] not in get("/transactions")[1]
