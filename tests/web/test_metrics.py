"""/metrics of a running broker: what clients did is counted, and every declared metric is shown and documented."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from broker.protocol.api_keys import ApiKey
from broker.web.collector import _Collected
from broker.web.families import FAMILIES
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, batch
from tests.support.scrape import Scrape
from tests.support.share_members import RELEASE, ShareMember, configure
from tests.support.waiting import eventually

REQUESTS = "kafka_network_requestmetrics_requests_total"
ERRORS = "kafka_network_requestmetrics_errors_total"
OPENED = "kafka_server_socketservermetrics_connection_creation_total"
CLOSED = "kafka_server_socketservermetrics_connection_close_total"
FOLLOWER_LAG = "kafka_server_fetcherlagmetrics_consumerlag"
"""Of a broker that follows: test_replication_metrics.py looks for it."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    settings = {
        "metrics.listener": "HTTP://127.0.0.1:0",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    root = tmp_path_factory.mktemp("measured")
    settings |= {"remote.log.storage.system.enable": "true", "archive.url": f"file://{root}/archive"}
    with BrokerProcess(root / "data", settings, zookeeper=f"{zookeeper}/measured") as process:
        yield process


@pytest.fixture
def ask(measured: BrokerProcess) -> Iterator[Requests]:
    with Requests(measured.bootstrap) as requests:
        yield requests


def scrape(broker: BrokerProcess) -> Scrape:
    return Scrape(broker.metrics_url)


def test_every_declared_metric_is_exposed_with_its_labels(measured: BrokerProcess, ask: Requests, topic: str) -> None:
    ask.create(topic, remote_storage_enable="true")
    ask.put(topic, b"x")
    ask.metadata("no-such-topic")
    ask.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": ["g"]})
    commit(ask, "all-labels", topic, 0)
    ShareMember(ask, "all-shared", topic).join().take()
    with Requests(measured.bootstrap):
        pass
    eventually(lambda: bool(scrape(measured).samples(CLOSED)))
    found = scrape(measured)
    for name, kind, labels, doc in FAMILIES.values():
        assert f"# HELP {name} {doc}\n# TYPE {name} {kind}\n" in found.text
        shown = found.samples(f"{name}_bucket" if kind == "histogram" else name)
        assert shown or name == FOLLOWER_LAG, f"{name} has no sample: collect() adds none, or cause one above"
        for held, _ in shown:
            assert sorted(held) == sorted([*labels, "le"] if kind == "histogram" else labels)


def test_a_metric_that_is_not_declared_is_refused() -> None:
    with pytest.raises(LookupError, match=r"no metric kafka_made_up is declared: add it to broker/web/families\.py"):
        _Collected().add("kafka_made_up", 1)


def test_bytes_and_records_are_counted_per_topic(measured: BrokerProcess, ask: Requests, topic: str) -> None:
    ask.create(topic, 2)
    sizes = [len(batch(b"a", b"b")), len(batch(b"c"))]
    ask.produce({(topic, 0): batch(b"a", b"b"), (topic, 1): batch(b"c")})
    ask.values(topic)
    found, prefix = scrape(measured), "kafka_server_brokertopicmetrics_"
    assert found.total(f"{prefix}messagesin_total", topic=topic) == 3
    assert found.total(f"{prefix}bytesin_total", topic=topic) == sum(sizes)
    assert found.total(f"{prefix}bytesout_total", topic=topic) == sizes[0]
    assert found.total("kafka_log_log_size", topic=topic) == sum(sizes)
    assert found.total("kafka_log_log_logendoffset", topic=topic, partition="0") == 2


def test_a_fetch_that_waited_counts_its_bytes_once_and_its_wait_as_remote(
    measured: BrokerProcess, ask: Requests, topic: str
) -> None:
    ask.create(topic)
    before = scrape(measured)
    ask.put(topic, b"x")
    ask.fetch([ask_for(topic)], version=12, min_bytes=1_000_000, max_wait=100)
    after, remote = scrape(measured), "kafka_network_requestmetrics_remotetime_seconds_total"
    assert after.total("kafka_server_brokertopicmetrics_bytesout_total", topic=topic) == len(batch(b"x"))
    assert after.total(remote, request="Fetch") - before.total(remote, request="Fetch") >= 0.1


def test_acknowledgements_of_share_groups_are_counted(measured: BrokerProcess, ask: Requests, topic: str) -> None:
    ask.create(topic)
    ask.put(topic, b"x", b"y", b"z")
    configure(ask, "shared", share_auto_offset_reset="earliest")
    member = ShareMember(ask, "shared", topic).join()
    before = scrape(measured)
    assert member.take() == [(0, 2, 1)]
    member.acknowledge({0: [(0, 1, [1]), (2, 2, [RELEASE])]})
    after, name = scrape(measured), "kafka_server_sharegroupmetrics_acknowledgement_total"
    grown = {
        kind: after.total(name, ack_type=kind) - before.total(name, ack_type=kind) for kind in ("accept", "release")
    }
    assert grown == {"accept": 2, "release": 1}
    assert after.total("kafka_server_sharepartitionmetrics_inflightmessagecount", group="shared", topic=topic) == 1
    sessions = "kafka_server_sharesessioncache_sharesessionscount"
    assert after.total(sessions) == before.total(sessions) + 1


def test_requests_and_errors_are_counted_by_api(measured: BrokerProcess, ask: Requests) -> None:
    before = scrape(measured)
    ask.metadata("unheard-of", version=9)
    ask.produce({("unheard-of", 0): batch(b"x")})
    ask.fetch([ask_for("unheard-of")], version=12)
    after = scrape(measured)

    def grown(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert grown(REQUESTS, request="Metadata", version="9") == 1
    for api in ("Metadata", "Produce", "Fetch"):
        assert grown(ERRORS, request=api, error="UNKNOWN_TOPIC_OR_PARTITION") == 1
        assert grown("kafka_network_requestmetrics_totaltime_seconds_count", request=api) == 1
        assert grown("kafka_network_requestmetrics_requestbytes_total", request=api) > 20


def commit(ask: Requests, group: str, topic: str, offset: int) -> None:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic, "partitions": partitions}],
    }

    def committed() -> bool:  # not while the group's partition is still being made
        answer = ask.ask(ApiKey.OFFSET_COMMIT, body)
        return not answer.topics[0].partitions[0].error_code

    ask.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": [group]})
    eventually(committed)


def test_the_lag_of_a_group_is_what_it_has_not_committed(
    measured: BrokerProcess, ask: Requests, topic: str, group: str
) -> None:
    ask.create(topic)
    for _ in range(5):
        ask.put(topic, b"x")
    commit(ask, group, topic, 2)
    found = scrape(measured)
    assert found.total("kafka_consumergroup_lag", consumergroup=group, topic=topic, partition="0") == 3
    assert found.total("kafka_consumergroup_current_offset", consumergroup=group, topic=topic) == 2
    assert found.total("kafka_coordinator_group_groupmetadatamanager_numgroups", state="Empty") >= 1


def test_connections_are_counted_with_the_reason_of_their_end(measured: BrokerProcess) -> None:
    before = scrape(measured)
    with Requests(measured.bootstrap) as leaves:
        leaves.metadata()
    with Requests(measured.bootstrap) as wrong:
        wrong.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert wrong.is_hung_up()

    def ended(reason: str) -> bool:
        return scrape(measured).total(CLOSED, reason=reason) > before.total(CLOSED, reason=reason)

    eventually(lambda: ended("client") and ended("too_large"))
    assert scrape(measured).total(OPENED) == before.total(OPENED) + 2


def test_openmetrics_is_spoken_to_who_asks_for_it(measured: BrokerProcess) -> None:
    found = Scrape(measured.metrics_url, accept="application/openmetrics-text; version=1.0.0")
    assert found.content_type.startswith("application/openmetrics-text")
    assert found.text.endswith("# EOF\n")


def test_nothing_else_is_served(measured: BrokerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        urllib.request.urlopen(f"{measured.metrics_url}/")
    raised.value.close()
    host, _, port = measured.metrics_url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", "/metrics")
    assert connection.getresponse().status == 405
    connection.close()
