"""Our broker answers scripted requests as Apache Kafka did, but where it is wanted otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.dynamic_config import KEYS
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.areas import (
    AREAS,
    CLUSTER_AREAS,
    CLUSTER_SETTINGS,
    GUARDED_AREAS,
    GUARDED_SETTINGS,
    KAFKA4_AREAS,
    KAFKA4_SETTINGS,
    SETTINGS,
    answers_of,
    answers_of_cluster,
    answers_of_guarded,
)
from tests.compat.kafka_answers.asking import Answers, read_answers, write_answers
from tests.compat.kafka_answers.comparing import ABSENT, Difference, deviations, judge, one_of_two, only_different
from tests.compat.kafka_answers.differences import WANTED
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import SERVED
from tests.support.replicated_cluster import ReplicatedCluster

RECORDED = {
    "produce": 225,
    "fetch": 374,
    "topics": 293,
    "configs": 104,
    "groups": 357,
    "transactions": 202,
    "quotas": 138,
    "rights": 746,
    "acls": 325,
    "cluster": 352,
    "consumer_groups": 351,
    "group_migration": 71,
    "share_groups": 177,
    "topic_ids": 30,
    "transactions_v2": 93,
}
NEEDED = {
    "consumer_groups": {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1, ApiKey.CONSUMER_GROUP_DESCRIBE: 1},
    "group_migration": {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1},
    "share_groups": {ApiKey.SHARE_FETCH: 2, ApiKey.DELETE_SHARE_GROUP_OFFSETS: 0},
    "topic_ids": {ApiKey.PRODUCE: 13},
    "transactions_v2": {ApiKey.END_TXN: 5},
}
WITH_ZOOKEEPER = {"quotas", "rights", "acls", "cluster"}
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


def check(area: str, ours: Answers) -> None:
    """They are those of Kafka with KRaft, or with ZooKeeper where that was recorded."""
    kafkas = read_answers(area)
    if area in WITH_ZOOKEEPER:
        kafkas = one_of_two(ours, kafkas, read_answers(f"{area}_zookeeper"))
    unwanted, stale = judge(deviations(kafkas, ours), WANTED[area])
    assert not unwanted, "\n".join(map(str, unwanted))
    assert not stale, f"no difference any more: {stale}"


@pytest.fixture(scope="module")
def asked_broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("asked") / "data"
    with BrokerProcess(directory, SETTINGS, zookeeper=f"{zookeeper}/kafka-answers") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.mark.parametrize("area", AREAS)
def test_the_broker_answers_as_kafka_did(area: str, asked_broker: BrokerProcess) -> None:
    check(area, answers_of(area, asked_broker.bootstrap, int(SETTINGS["broker.id"]), "asked-"))


@pytest.fixture(scope="module")
def asked_as_kafka4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("asked-as-kafka4") / "data"
    settings = {**SETTINGS, **{name: value for name, value in KAFKA4_SETTINGS.items() if name in KEYS}}
    with BrokerProcess(directory, settings, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.mark.parametrize("area", KAFKA4_AREAS)
def test_the_broker_answers_as_kafka_4_did(area: str, asked_as_kafka4: BrokerProcess) -> None:
    if any(SERVED.get(api, (-1, -1))[1] < version for api, version in NEEDED[area].items()):
        pytest.skip("not served yet")
    check(area, answers_of(area, asked_as_kafka4.bootstrap, int(SETTINGS["broker.id"]), f"{area}-"))


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("asked-guarded") / "data"
    with BrokerProcess(directory, GUARDED_SETTINGS, zookeeper=f"{zookeeper}/kafka-answers-guarded") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.mark.parametrize("area", GUARDED_AREAS)
def test_a_broker_with_an_authorizer_answers_as_kafka_did(area: str, guarded_broker: BrokerProcess) -> None:
    mine, admins = (guarded_broker.listeners[name] for name in ("PLAINTEXT", "SASL_PLAINTEXT"))
    check(area, answers_of_guarded(area, mine, admins, int(SETTINGS["broker.id"]), f"{area}-"))


class OurNodes:
    """A cluster of ours, as the requests see it."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._brokers = cluster.brokers

    @property
    def addresses(self) -> dict[int, str]:
        return {broker_id: broker.bootstrap for broker_id, broker in self._brokers.items()}

    def kill(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def start(self, broker_id: int) -> None:
        self._brokers[broker_id].start()

    def pause(self, broker_id: int) -> None:
        self._brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        self._brokers[broker_id].resume()


@pytest.fixture(scope="module")
def asked_cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[ReplicatedCluster]:
    settings = {
        **CLUSTER_SETTINGS,
        "zookeeper.connect": f"{zookeeper}/kafka-answers-cluster",
        "zookeeper.session.timeout.ms": "2000",  # a dead broker is in the metadata until then
    }
    racks = {broker_id: {"broker.rack": f"rack{broker_id}"} for broker_id in (1, 2, 3)}
    with ReplicatedCluster(tmp_path_factory.mktemp("asked-cluster"), settings, racks) as cluster:
        yield cluster
    for broker in cluster.brokers.values():
        assert "Traceback" not in broker.log_file.read_text()


@pytest.mark.parametrize("area", CLUSTER_AREAS)
def test_a_cluster_answers_as_kafka_did(area: str, asked_cluster: ReplicatedCluster) -> None:
    check(area, answers_of_cluster(area, OurNodes(asked_cluster), f"{area}-"))


def test_nothing_of_what_was_recorded_is_left_out() -> None:
    assert {area: sum(map(len, read_answers(area).values())) for area in RECORDED} == RECORDED


def test_every_wanted_difference_is_explained_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [f"| {difference.what} | {difference.why} |" for area in WANTED.values() for difference in area]
    assert [row for row in rows if row not in text] == []


def test_a_difference_that_nobody_wants_and_one_that_is_gone_are_found() -> None:
    kafka: Answers = {"a": {"1": {"error": "none", "at": [{"offset": 1}]}}, "b": {"1": 5}}
    ours: Answers = {"a": {"1": {"error": "bad", "at": [{"offset": 2}]}}, "b": {"1": 5}}
    wanted = [Difference("", "", ("a",), {"error": "bad"}), Difference("gone", "", ("b",), {"": 6})]
    unwanted, stale = judge(deviations(kafka, ours), wanted)
    assert [(one.field, one.kafka, one.ours) for one in unwanted] == [("at.offset", 1, 2)]
    assert stale == ["gone: b", "gone: "]
    assert [one.ours for one in deviations({"a": {"1": 1}}, {})] == [ABSENT]
    longer = Difference("", "", ("b",), {"": lambda one: one.ours > one.kafka})
    for own, expected in ((6, []), (4, [4])):
        unwanted, _ = judge(deviations({"b": {"1": 5}}, {"b": {"1": own}}), [longer])
        assert [one.ours for one in unwanted] == expected


def test_ours_may_be_either_of_two_answers() -> None:
    first: Answers = {"a": {"1": 1}, "b": {"1": 2}, "c": {"1": 3}}
    second: Answers = {"a": {"1": 1}, "b": {"1": 5}, "c": {"1": 6}}
    other = only_different(first, second)
    assert other == {"b": {"1": 5}, "c": {"1": 6}}
    ours: Answers = {"a": {"1": 1}, "b": {"1": 5}, "c": {"1": 7}}
    found = deviations(one_of_two(ours, first, other), ours)
    assert [(one.request, one.kafka, one.ours) for one in found] == [("c", 3, 7)]


def test_answers_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.compat.kafka_answers.asking.HERE", tmp_path)
    answers: Answers = {"a": {"1": [1], "2": [2], "3": [1]}, "b": {"-": True}}
    write_answers("area", answers)
    assert read_answers("area") == answers
    assert '"1,3":[1]' in (tmp_path / "area.json").read_text(encoding="utf-8")
