"""Brokers that serve less than Kafka: every job on every profile of tests/support/broker_profiles.py works, or is
refused at its start by the sentence of the feature that they lack (spark_connector/broker_needs.py).

Our broker is cut down to each (tests/support/cut_down.py), which takes half a second. The jobs run in this process, as
Spark's driver and tasks do them; Spark itself does them on the service that serves least.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.partition_offsets import LATEST, known_offsets
from broker.client.producer import Producer
from broker.errors import ConfigError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from spark_connector import broker_needs
from spark_connector.broker_needs import (
    EXACTLY_ONCE,
    FEATURES,
    GROUP_STORE,
    IDEMPOTENT,
    LAG,
    READ,
    WRITE,
    Feature,
)
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.offset_reader import OffsetReader
from spark_connector.worker_clients import worker_clients
from tests.conftest import unique_name
from tests.spark_connector.test_rights import Queries
from tests.support.broker_profiles import EVENT_HUBS, KOP, LEAST, PROFILES, Profile, lacks
from tests.support.cut_down import CutDownBroker
from tests.support.denying import Denying
from tests.support.right_jobs import RECORDS, RUNS, World, batch_read
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: Mapping[str, tuple[Feature, ...]] = {
    "batch read": (READ,),
    "batch read from committed offsets": (READ, GROUP_STORE),
    "read with a topic of bad records": (READ, WRITE, IDEMPOTENT),
    "stream": (READ,),
    "stream that commits to a group": (READ, GROUP_STORE),
    "batch write, at least once": (WRITE, IDEMPOTENT),
    "stream write, at least once": (WRITE, IDEMPOTENT),
    "batch write, exactly once": (WRITE, EXACTLY_ONCE),
    "stream write, exactly once": (WRITE, EXACTLY_ONCE),
    "load": (READ,),
    "verify": (READ,),
}
"""What each needs. Whatever else they ask for, they do without."""

NO_IDEMPOTENCE = {"kafka.enable.idempotence": "false"}


def just(name: str, *features: Feature) -> Profile:
    """Brokers that serve what these need, each API in the lowest version only."""
    apis = {api: (lowest, lowest) for one in features for api, lowest in one.needs.items()}
    return Profile(name, "the table of needs", {**apis, ApiKey.API_VERSIONS: (0, 0)})


NO_MORE = {job: just(job, *features) for job, features in JOBS.items()}
NO_MORE["lag"] = just("lag", LAG)


class At(Denying):
    """A view of the cut-down broker: everybody comes in, and meets this profile. `more`: options of each user."""

    def __init__(self, broker: CutDownBroker, profile: Profile, more: Mapping[str, str]) -> None:
        self.listeners = {"PLAINTEXT": broker.full}
        self._bootstrap, self._more = broker.bootstrap(profile), more

    def properties(self, user: str) -> dict[str, str]:
        return {name.removeprefix("kafka."): text for name, text in self.options(user).items()}

    def options(self, user: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, **self._more}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutDownBroker]:
    with CutDownBroker(tmp_path_factory.mktemp("cut-down") / "data", [*PROFILES, *NO_MORE.values()]) as found:
        yield found
        worker_clients().close()


@pytest.fixture(scope="module")
def topics(brokers: CutDownBroker) -> dict[str, str]:
    """Those that all tests share."""
    names = {name: unique_name(f"others-{name}") for name in ("topic", "sink", "bad")}
    with Cluster(brokers.full) as cluster:
        for name in ("sink", "bad"):
            Admin(cluster).create_topic(names[name], 1)
    TopicData(brokers.full, names["topic"], partitions=2).produce(RECORDS)
    return names


class Worlds:
    def __init__(self, brokers: CutDownBroker, topics: Mapping[str, str], directory: Path) -> None:
        self._brokers, self._topics, self._directory = brokers, topics, directory

    def at(self, profile: Profile, more: Mapping[str, str] | None = None) -> World:
        """A world in which nobody has done anything but fill the topic."""
        group = unique_name("others")
        names = {**self._topics, "group": group, "prefix": f"{group}-"}
        return World(At(self._brokers, profile, more or {}), names, self._directory / group)

    def run(self, job: str, profile: Profile, more: Mapping[str, str] | None = None) -> int:
        return RUNS[job](self.at(profile, more), "anybody")


@pytest.fixture
def worlds(brokers: CutDownBroker, topics: dict[str, str], tmp_path: Path) -> Worlds:
    return Worlds(brokers, topics, tmp_path)


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_a_job_works_or_is_refused_by_the_sentence_of_what_is_lacking(
    worlds: Worlds, profile: Profile, subtests: pytest.Subtests
) -> None:
    for job, features in JOBS.items():
        with subtests.test(job):
            lacking = [one for one in features if lacks(profile, one)]
            if not lacking:
                assert worlds.run(job, profile) == RECORDS
                continue
            with pytest.raises(ConfigError) as refused:
                worlds.run(job, profile)
            assert str(refused.value).startswith(f"{lacking[0].name}: the brokers at ")
            assert str(refused.value).endswith(lacking[0].instead)
            if lacking == [IDEMPOTENT]:
                assert worlds.run(job, profile, NO_IDEMPOTENCE) == RECORDS


@pytest.mark.parametrize("job", JOBS)
def test_the_lowest_versions_of_what_a_job_needs_are_enough(worlds: Worlds, job: str) -> None:
    assert worlds.run(job, NO_MORE[job]) == RECORDS


def test_for_lag_the_lowest_versions_of_what_it_needs_are_enough(
    brokers: CutDownBroker, topics: dict[str, str]
) -> None:
    with Cluster(brokers.bootstrap(NO_MORE["lag"])) as cluster:
        tps = [TopicPartition(topics["topic"], index) for index in cluster.partitions(topics["topic"])]
        assert sum(known_offsets(cluster, tps, LATEST).values()) == RECORDS


class Brokers:
    """A cluster that says which versions it serves, and can do nothing."""

    address = "host:9092"

    def __init__(self, served: Mapping[ApiKey, int]) -> None:
        self._served = served

    def any_connection(self) -> Brokers:
        return self

    def version(self, api: ApiKey) -> int:
        if api not in self._served:
            raise UnsupportedVersion(api.name)
        return self._served[api]


def refusal(served: Mapping[ApiKey, int], *features: Feature) -> str:
    with pytest.raises(ConfigError) as refused:
        broker_needs.check(Brokers(served), *features)  # type: ignore[arg-type]
    return str(refused.value)


def test_each_need_is_asked_for(subtests: pytest.Subtests) -> None:
    for feature in FEATURES:
        served = dict(feature.needs)
        broker_needs.check(Brokers(served), feature)  # type: ignore[arg-type]
        for api, lowest in feature.needs.items():
            with subtests.test(feature.name, api=api.title):
                without = {one: version for one, version in served.items() if one is not api}
                assert f"host:9092 lack {api.title}, and version {lowest} or" in refusal(without, feature)
                if lowest:
                    older = refusal({**served, api: lowest - 1}, feature)
                    assert f"serve {api.title} up to version {lowest - 1} only" in older


def test_the_sentence_says_since_when_kafka_has_it_and_what_to_do() -> None:
    assert refusal({}, EXACTLY_ONCE) == (
        "exactly-once writes: the brokers at host:9092 lack Produce, and version 3 or later is needed (Kafka 2.5 and "
        "later do). Set option 'delivery' to at-least-once. Loads are exactly once on any brokers, because they commit "
        "in their table"
    )


def test_what_a_service_advertises_and_refuses_is_done_without(
    worlds: Worlds, caplog: pytest.LogCaptureFixture
) -> None:
    """KoP advertises the API of leader epochs, which a verification asks for the truncations of a log."""
    with caplog.at_level(logging.DEBUG, "pykafka.spark"):
        assert worlds.run("verify", KOP) == RECORDS
    assert "Traceback" not in caplog.text


def test_a_load_is_committed_where_there_are_no_groups(worlds: Worlds, caplog: pytest.LogCaptureFixture) -> None:
    assert worlds.run("load", LEAST) == RECORDS
    assert "its offsets were not published to the consumer group" in caplog.text


def test_without_configurations_a_topic_counts_as_compacted(worlds: Worlds) -> None:
    world = worlds.at(LEAST)
    assert RUNS["verify"](world, "anybody") == RECORDS
    assert world.names["compacted"] == "True"


# --- offsets by time


def test_an_option_that_names_a_time_is_refused_where_brokers_find_no_times(worlds: Worlds) -> None:
    for option in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(
            ConfigError, match=r"find no offsets by time.*INVALID_REQUEST.*Set startingOffsets"
        ) as caught:
            batch_read(worlds.at(LEAST), "anybody", **{option: "1"})
        assert "option 'where'" in str(caught.value)


def test_a_condition_on_time_reads_all_and_keeps_what_it_should(
    brokers: CutDownBroker, worlds: Worlds, topic: str, subtests: pytest.Subtests
) -> None:
    with Cluster(brokers.full) as cluster, Producer(brokers.full) as producer:
        Admin(cluster).create_topic(topic, 1, configs={"retention.ms": "-1"})
        for second in range(20):
            producer.send(topic, b"", timestamp=second * 1000)
        producer.flush(30)
    conditions = {
        "timestamp >= '1970-01-01T00:00:05Z'": 15,
        "timestamp < '1970-01-01T00:00:05Z'": 5,
        "timestamp >= '1970-01-01T00:00:05Z' AND timestamp < '1970-01-01T00:00:07Z'": 2,
    }
    for where, rows in conditions.items():
        for profile, planned in ((LEAST, 20), (EVENT_HUBS, rows)):
            with subtests.test(where, profile=str(profile)):
                world = worlds.at(profile)
                world.names = {**world.names, "topic": topic}
                given = {"where": where, "timestampsGrow": "true"}
                assert batch_read(world, "anybody", **given) == rows
                options = parse_options({**world.read_options("anybody"), **given}, Mode.BATCH)
                reader = OffsetReader(options)
                bounds = reader.batch_bounds()
                reader.close()
                assert sum(bounds.end.values()) - sum(bounds.start.values()) == planned


# --- clients


def test_a_client_without_idempotence_says_what_to_set(brokers: CutDownBroker, topics: dict[str, str]) -> None:
    with Producer(brokers.bootstrap(EVENT_HUBS), {"delivery.timeout.ms": 5000}) as producer:
        future = producer.send(topics["sink"], b"")
        with pytest.raises(Exception, match=r"INIT_PRODUCER_ID: set enable\.idempotence=false"):
            future.result(30)


def test_a_version_of_api_versions_that_ends_the_connection_is_not_asked_for(brokers: CutDownBroker) -> None:
    with Cluster(brokers.bootstrap(EVENT_HUBS)) as cluster:
        assert cluster.brokers()
        GroupOffsets(cluster, unique_name("others")).fetch()
    assert {version for api, version in brokers.asked(EVENT_HUBS) if api is ApiKey.API_VERSIONS} == {3}


# --- by Spark itself


@pytest.mark.timeout(300)
def test_spark_reads_streams_loads_and_writes_on_event_hubs(spark: SparkSession, worlds: Worlds) -> None:
    for job in ("batch read", "stream that commits to a group", "load", "stream write, at least once"):
        more = NO_IDEMPOTENCE if "write" in job else {}
        assert Queries(spark, worlds.at(EVENT_HUBS, more), "anybody").run(job) == RECORDS
    with pytest.raises(Exception, match=re.escape(EXACTLY_ONCE.instead)) as refused:
        Queries(spark, worlds.at(EVENT_HUBS), "anybody").run("batch write, exactly once")
    assert "exactly-once writes: the brokers at 127.0.0.1:" in str(refused.value)
