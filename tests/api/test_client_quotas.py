"""Client quotas over the wire: the two APIs with Kafka's errors, and what quotas do to those they are for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from broker.api import table
from broker.api.serving import Served
from broker.errors import ErrorCode
from broker.net.stopwatch import Stopwatch
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import to_ms
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import noise
from tests.support.raw_requests import Requests, ask_for, batch, fetch_body, versions
from tests.support.scrape import Scrape
from tests.support.share_members import ACCEPT, ShareMember, acquired, configure
from tests.support.waiting import eventually

EXACT, BY_DEFAULT, ANY = 0, 1, 2

Entity = Mapping[str, str | None]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose quotas disturb no other tests."""
    settings = {"metrics.listener": "HTTP://127.0.0.1:0"}
    with BrokerProcess(tmp_path_factory.mktemp("quotas"), settings, standalone=True) as process:
        yield process
        assert "Traceback" not in process.output


@pytest.fixture
def ask(own: BrokerProcess) -> Iterator[Requests]:
    """A client without a quota; what it sets is removed again."""
    with Requests(own.bootstrap, client_id="admin") as made:
        yield made
        for entity, limits in described(made).items():
            assert alter(made, dict(entity), dict.fromkeys(limits)) == (ErrorCode.none, None)


def alter(
    ask: Requests,
    entity: Entity,
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
    version: int | None = None,
) -> tuple[ErrorCode, str | None]:
    operations = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes.items()]
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    body = {"entries": [{"entity": parts, "ops": operations}], "validate_only": validate_only}
    (row,) = ask.ask(ApiKey.ALTER_CLIENT_QUOTAS, body, version).entries
    assert {one.entity_type: one.entity_name for one in row.entity} == entity
    return ErrorCode(row.error_code), row.error_message


def describe(ask: Requests, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    rows = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return ask.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": rows, "strict": strict}, version)


def described(
    ask: Requests, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = describe(ask, *components, strict=strict, version=version)
    assert answer.error_code is ErrorCode.none, answer
    return {
        tuple((one.entity_type, one.entity_name) for one in row.entity): {one.key: one.value for one in row.values}
        for row in answer.entries
    }


# --- DescribeClientQuotas and AlterClientQuotas


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_what_is_set_is_described_until_it_is_removed(ask: Requests, version: int) -> None:
    entity = {"user": "bob, the *", "client-id": None}
    limits = {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    assert alter(ask, entity, limits, version=version) == (ErrorCode.none, None)
    assert described(ask, version=version) == {(("user", "bob, the *"), ("client-id", None)): limits}
    assert alter(ask, entity, {"producer_byte_rate": None}, version=version) == (ErrorCode.none, None)
    assert list(described(ask, version=version).values()) == [{"request_percentage": 12.5}]
    assert alter(ask, entity, {"request_percentage": None, "consumer_byte_rate": None})[0] is ErrorCode.none
    assert described(ask, version=version) == {}


def test_a_filter_asks_for_names_defaults_and_types(ask: Requests) -> None:
    entities: list[dict[str, str | None]] = [
        {"user": "a"},
        {"user": None},
        {"user": "a", "client-id": "x"},
        {"user": "a", "client-id": None},
        {"client-id": "x"},
        {"ip": "127.0.0.9"},
        {"ip": None},
    ]
    for entity in entities:
        key = "connection_creation_rate" if "ip" in entity else "consumer_byte_rate"
        assert alter(ask, entity, {key: 1e6}) == (ErrorCode.none, None)

    def found(*components: tuple[str, int, str | None], strict: bool = False) -> list[dict[str, str | None]]:
        given = [dict(entity) for entity in described(ask, *components, strict=strict)]
        return [entity for entity in entities if entity in given]

    assert found() == entities
    assert found(strict=True) == []
    assert found(("user", EXACT, "a")) == [entities[0], entities[2], entities[3]]
    assert found(("user", EXACT, "a"), strict=True) == [entities[0]]
    assert found(("user", BY_DEFAULT, None)) == [entities[1]]
    assert found(("user", ANY, None), strict=True) == entities[:2]
    assert found(("user", ANY, None), ("client-id", ANY, None)) == entities[2:4]
    assert found(("user", ANY, None), ("client-id", BY_DEFAULT, None)) == [entities[3]]
    assert found(("client-id", EXACT, "x")) == [entities[2], entities[4]]
    assert found(("client-id", EXACT, "x"), strict=True) == [entities[4]]
    assert found(("user", EXACT, "nobody")) == []
    assert found(("ip", EXACT, "127.0.0.9")) == [entities[5]]
    assert found(("ip", ANY, None)) == entities[5:]
    assert found(("ip", BY_DEFAULT, None)) == [entities[6]]


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.invalid_request, "Duplicate user filter component"),
        ([("client-id", ANY, None)] * 2, ErrorCode.invalid_request, "Duplicate client filter component"),
        ([("", ANY, None)], ErrorCode.invalid_request, "Unexpected empty filter component entity type"),
        ([("group", ANY, None)], ErrorCode.unsupported_version, "Custom entity type 'group' not supported"),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.invalid_request, "IP filter component should not be used"),
        ([("user", 3, None)], ErrorCode.invalid_request, "Unexpected match type: 3"),
    ],
)
def test_filters_that_kafka_refuses(
    ask: Requests, components: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    answer = describe(ask, *components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert message in answer.error_message


@pytest.mark.parametrize(
    ("entity", "changes", "message"),
    [
        ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ({"group": "g"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"user": "a", "ip": "127.0.0.1"}, {"producer_byte_rate": 1.0}, "IP entity should not be used with user"),
        ({"ip": "no such host"}, {"connection_creation_rate": 1.0}, "no such host is not a valid IP or resolvable"),
        ({"ip": None}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"user": "a"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"user": "a"}, {"SCRAM-SHA-256": 1.0}, "Invalid configuration key SCRAM-SHA-256"),
        ({"user": "a"}, {"SCRAM-SHA-256": None}, "Invalid configuration key SCRAM-SHA-256"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        ({"ip": None}, {"connection_creation_rate": 3e9}, "connection_creation_rate must be a INT value"),
        ({"user": "a"}, {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
        (
            {"user": "u" * 2_000_000},
            {"producer_byte_rate": 1.0},
            "the name of a ZooKeeper node has at most 1,048,000 bytes",
        ),
        ({"client-id": ".."}, {"producer_byte_rate": 1.0}, "ZooKeeper takes no such name"),
        ({"user": "a"}, {"request_percentage": float("nan")}, "Quota request_percentage must be greater than 0"),
    ],
)
def test_quotas_that_are_refused_change_nothing(
    ask: Requests, entity: dict[str, str | None], changes: dict[str, float | None], message: str
) -> None:
    code, text = alter(ask, entity, changes)
    assert code is ErrorCode.invalid_request
    assert message in (text or "")
    assert described(ask) == {}


def test_validate_only_checks_and_changes_nothing(ask: Requests) -> None:
    assert alter(ask, {"user": "a"}, {"producer_byte_rate": 1.0}, validate_only=True) == (ErrorCode.none, None)
    assert alter(ask, {"user": "a"}, {"x": 1.0}, validate_only=True)[0] is ErrorCode.invalid_request
    assert described(ask) == {}


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, standalone=True) as process:
        with Requests(process.bootstrap) as ask:
            assert alter(ask, {"client-id": "x"}, {"producer_byte_rate": 5.0}) == (ErrorCode.none, None)
        process.stop()
        process.start()
        with Requests(process.bootstrap) as ask:
            assert described(ask) == {(("client-id", "x"),): {"producer_byte_rate": 5.0}}


# --- what they do


def produce(ask: Requests, topic: str, size: int, *, version: int | None = None, acks: int = -1) -> Any:
    """The whole answer to a record of random bytes."""
    rows = [{"index": 0, "records": batch(noise(size))}]
    body = {"transactional_id": None, "acks": acks, "timeout": 30_000}
    return ask.ask(ApiKey.PRODUCE, {**body, "topic_data": [{**ask.named(topic), "partition_data": rows}]}, version)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_a_producer_above_its_quota_is_answered_at_once_and_then_waits(
    own: BrokerProcess, ask: Requests, version: int
) -> None:
    topic, client_id = f"produced-{version}", f"producer-{version}"
    ask.create(topic)
    alter(ask, {"client-id": client_id}, {"producer_byte_rate": 10_000.0})
    with Requests(own.bootstrap, client_id=client_id) as producer:
        begin = time.monotonic()
        answer = produce(producer, topic, 400_000, version=version)
        # 1 KB was saved up, so 40 s of the quota are owed.
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert 39_000 < to_ms(answer.throttle_time) < 40_500
        assert time.monotonic() - begin < 39


@pytest.mark.parametrize("version", [versions(ApiKey.PRODUCE)[0], versions(ApiKey.PRODUCE)[-1]])
def test_a_producer_goes_on_when_it_has_waited(own: BrokerProcess, ask: Requests, version: int) -> None:
    topic, client_id = f"waited-{version}", f"patient-{version}"
    ask.create(topic)
    alter(ask, {"client-id": client_id}, {"producer_byte_rate": 1_000_000.0})
    with Requests(own.bootstrap, client_id=client_id) as producer:
        begin = time.monotonic()
        throttle_ms = to_ms(produce(producer, topic, 400_000, version=version).throttle_time)
        assert throttle_ms > 250
        producer.metadata(topic)
        assert time.monotonic() - begin >= throttle_ms / 1000 - 0.01


def test_the_quota_is_for_acks_0_as_well(own: BrokerProcess, ask: Requests) -> None:
    ask.create("acks-0")
    alter(ask, {"client-id": "careless"}, {"producer_byte_rate": 1_000_000.0})
    with Requests(own.bootstrap, client_id="careless") as producer:
        rows = [{"index": 0, "records": batch(noise(500_000))}]
        body = {"transactional_id": None, "acks": 0, "timeout": 1000}
        begin = time.monotonic()
        producer.send(ApiKey.PRODUCE, {**body, "topic_data": [{"name": "acks-0", "partition_data": rows}]})
        producer.metadata("acks-0")
        assert time.monotonic() - begin > 0.3


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_a_consumer_above_its_quota_gets_little_at_once_and_nothing_while_it_owes(
    own: BrokerProcess, ask: Requests, version: int
) -> None:
    name, client_id = f"fetched-{version}", f"consumer-{version}"
    topic: Any = ask.create(name)
    for _ in range(8):
        ask.put(name, noise(5000))
    alter(ask, {"client-id": client_id}, {"consumer_byte_rate": 200.0})
    wanted = fetch_body([ask_for(topic if version >= 13 else name)])

    def fetch(consumer: Requests) -> tuple[int, int]:
        """(bytes of the records, throttle time in ms)."""
        answer = consumer.ask(ApiKey.FETCH, wanted, version)
        found = [partition.records for row in answer.responses for partition in row.partitions]
        return sum(len(one or b"") for one in found), to_ms(answer.throttle_time)

    with (
        Requests(own.bootstrap, client_id=client_id) as consumer,
        Requests(own.bootstrap, client_id=client_id) as other,
    ):
        size, throttle_ms = fetch(consumer)
        assert 5000 < size < 10_000, "one batch: 20 bytes may be had at once"
        assert 25_000 < throttle_ms < 25_800, "20 bytes of them were saved up"
        assert fetch(other)[0] == 0


def test_a_consumer_goes_on_when_it_has_waited(own: BrokerProcess, ask: Requests) -> None:
    ask.create("awaited")
    for _ in range(2):
        ask.put("awaited", noise(5000))
    alter(ask, {"client-id": "patient"}, {"consumer_byte_rate": 20_000.0})
    with Requests(own.bootstrap, client_id="patient") as consumer:
        begin = time.monotonic()
        throttle_ms = to_ms(consumer.ask(ApiKey.FETCH, fetch_body([ask_for("awaited")]), 12).throttle_time)
        assert throttle_ms > 100
        consumer.metadata("awaited")
        assert time.monotonic() - begin >= throttle_ms / 1000 - 0.01
        eventually(lambda: any(one.records for one in consumer.fetch([ask_for("awaited", 1)], version=12)))


def test_a_member_of_a_share_group_above_its_quota_acquires_nothing(own: BrokerProcess, ask: Requests) -> None:
    """What it acknowledges is stored all the same."""
    ask.create("shared")
    for _ in range(4):
        ask.put("shared", noise(5000))
    configure(ask, "sharing", share_auto_offset_reset="earliest")
    with (
        Requests(own.bootstrap, client_id="sharer") as consumer,
        Requests(own.bootstrap, client_id="sharer") as other,
    ):
        first, second = (ShareMember(one, "sharing", "shared").join() for one in (consumer, other))
        assert second.take(max_bytes=1) == [(0, 0, 1)]
        alter(ask, {"client-id": "sharer"}, {"consumer_byte_rate": 20_000.0})
        begin = time.monotonic()
        answer = first.fetch()
        assert acquired(answer) == [(1, 1, 1)], "one batch: 2,000 bytes may be had at once"
        throttle_ms = to_ms(answer.throttle_time)
        assert 100 < throttle_ms <= 254
        withheld = second.fetch({0: [(0, 0, [ACCEPT])]})
        (row,) = withheld.responses[0].partitions
        assert row.acknowledge_error_code == ErrorCode.none
        if time.monotonic() - begin < throttle_ms / 1000:  # not on a machine so slow that the wait is over
            assert not row.acquired_records
            assert to_ms(withheld.throttle_time) > 0
        consumer.metadata("shared")
        assert time.monotonic() - begin >= throttle_ms / 1000 - 0.01
        eventually(lambda: second.take() == [(2, 2, 1)])


def test_a_batch_larger_than_what_can_be_saved_up_is_not_withheld_for_ever(own: BrokerProcess, ask: Requests) -> None:
    ask.create("large")
    ask.put("large", noise(104_000))
    alter(ask, {"client-id": "small"}, {"consumer_byte_rate": 200_000.0})
    with Requests(own.bootstrap, client_id="small") as consumer:
        answer = consumer.ask(ApiKey.FETCH, fetch_body([ask_for("large")]), 12)
        assert len(answer.responses[0].partitions[0].records) > 104_000
        assert 380 < to_ms(answer.throttle_time) < 480


def test_a_session_goes_on_after_a_throttle(own: BrokerProcess, ask: Requests) -> None:
    ask.create("session")
    for size in (30_000, 30_000, 100_000):
        ask.put("session", noise(size))
    alter(ask, {"client-id": "sessions"}, {"consumer_byte_rate": 100_000.0})
    with (
        Requests(own.bootstrap, client_id="sessions") as consumer,
        Requests(own.bootstrap, client_id="sessions") as other,
    ):
        first = consumer.ask(ApiKey.FETCH, fetch_body([ask_for("session", max_bytes=40_000)], session_epoch=0), 12)
        consumer.metadata("session")  # its throttle is over
        assert other.ask(ApiKey.FETCH, fetch_body([ask_for("session", 2)]), 12).responses
        later = {"session_id": first.session_id, "max_wait": 5000}
        second = consumer.ask(
            ApiKey.FETCH, fetch_body([ask_for("session", 1, max_bytes=40_000)], session_epoch=1, **later), 12
        )
        assert (second.responses, second.session_id) == ((), first.session_id)
        assert to_ms(second.throttle_time) > 300
        third = consumer.ask(ApiKey.FETCH, fetch_body([], session_epoch=2, **later), 12)
        assert [p.records[61:] != b"" for topic in third.responses for p in topic.partitions] == [True]


def test_the_most_specific_quota_counts(own: BrokerProcess, ask: Requests) -> None:
    ask.create("specific")
    alter(ask, {"client-id": None}, {"producer_byte_rate": 1.0})
    alter(ask, {"client-id": "own"}, {"producer_byte_rate": 1.0})
    alter(ask, {"user": None}, {"producer_byte_rate": 1.0})
    alter(ask, {"user": "ANONYMOUS"}, {"producer_byte_rate": 1.0})
    alter(ask, {"user": "ANONYMOUS", "client-id": None}, {"producer_byte_rate": 1.0})
    alter(ask, {"user": "ANONYMOUS", "client-id": "own"}, {"producer_byte_rate": 1e9})
    with Requests(own.bootstrap, client_id="own") as producer:
        assert to_ms(produce(producer, "specific", 10_000).throttle_time) == 0
    with Requests(own.bootstrap, client_id="other") as producer:
        assert to_ms(produce(producer, "specific", 10_000).throttle_time) > 10_000


def test_who_has_no_quota_is_not_counted(own: BrokerProcess, ask: Requests) -> None:
    ask.create("uncounted")
    alter(ask, {"client-id": "counted"}, {"producer_byte_rate": 1e9})
    before = Scrape(own.metrics_url).total("kafka_server_quotas_clients", type="Produce")
    for number in range(50):
        with Requests(own.bootstrap, client_id=f"somebody-{number}") as producer:
            produce(producer, "uncounted", 10)
    with Requests(own.bootstrap, client_id="counted") as producer:
        produce(producer, "uncounted", 10)
    assert Scrape(own.metrics_url).total("kafka_server_quotas_clients", type="Produce") == before + 1


def test_the_time_of_the_broker_is_limited_by_one_sample(own: BrokerProcess, ask: Requests) -> None:
    alter(ask, {"client-id": "busy"}, {"request_percentage": 0.0001})
    with Requests(own.bootstrap, client_id="busy") as client:
        begin, others = time.monotonic(), []  # the second is counted by the broker, from before its answer comes
        answer = client.metadata(version=9)
        assert to_ms(answer.throttle_time) == 1000
        for _ in range(3):  # the best one counts: the machine may do something else
            asked = time.monotonic()
            ask.metadata()
            others.append(time.monotonic() - asked)
        assert min(others) < 0.5, "others are not held up"
        client.metadata()
        assert time.monotonic() - begin > 0.9


@pytest.mark.parametrize("version", [1, 3, 4])
def test_a_client_learns_from_the_answer_about_versions_how_long_it_is_throttled(
    own: BrokerProcess, ask: Requests, version: int
) -> None:
    body = {"client_software_name": "tests", "client_software_version": "1"}
    with Requests(own.bootstrap, client_id="asking") as client:
        assert to_ms(client.ask(ApiKey.API_VERSIONS, body, version).throttle_time) == 0
        alter(ask, {"client-id": "asking"}, {"request_percentage": 0.0001})
        answer = client.ask(ApiKey.API_VERSIONS, body, version)
        assert (answer.error_code, to_ms(answer.throttle_time)) == (ErrorCode.none, 1000)


def test_time_in_threads_counts(own: BrokerProcess, ask: Requests) -> None:
    """Else who sends batches that are costly to check could use all cores."""
    ask.create("costly")
    builder = BatchBuilder(codec=Codec.GZIP, max_bytes=1 << 30)
    builder.append(0, None, bytes(200 << 20))
    records = builder.build()
    alter(ask, {"client-id": "heavy"}, {"request_percentage": 0.5})
    with Requests(own.bootstrap, client_id="heavy") as producer:
        data = [{"name": "costly", "partition_data": [{"index": 0, "records": records}]}]
        answer = producer.ask(
            ApiKey.PRODUCE, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": data}
        )
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert to_ms(answer.throttle_time) > 0


async def test_time_for_changes_that_end_without_their_client_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_topics(context: object) -> str:
        await asyncio.sleep(0)
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return "created"

    monkeypatch.setattr(table, "API_TABLE", (Served(ApiKey.CREATE_TOPICS, 2, 7, create_topics, changes_metadata=True),))
    (route,) = table.make_routes(cast(Any, None))
    watch = Stopwatch(cast(Any, route.handler)())
    assert await watch == "created"
    assert watch.seconds >= 0.02


def test_a_consumer_whose_time_is_used_up_gets_records_with_every_answer(own: BrokerProcess, ask: Requests) -> None:
    ask.create("slowly")
    ask.put("slowly", b"x")
    alter(ask, {"client-id": "slow"}, {"request_percentage": 0.0001})
    with Requests(own.bootstrap, client_id="slow") as consumer:
        for _ in range(2):
            answer = consumer.ask(ApiKey.FETCH, fetch_body([ask_for("slowly")]), 12)
            assert to_ms(answer.throttle_time) == 1000
            assert answer.responses[0].partitions[0].records, "or it would never get any"


def test_versions_without_a_throttle_time_wait_all_the_same(own: BrokerProcess, ask: Requests) -> None:
    alter(ask, {"client-id": "old"}, {"request_percentage": 0.0001})
    with Requests(own.bootstrap, client_id="old") as client:
        begin = time.monotonic()
        client.metadata(version=1)
        client.metadata(version=1)
        assert time.monotonic() - begin > 0.9


@pytest.mark.parametrize(
    ("api", "strict_from"), [(ApiKey.CREATE_TOPICS, 6), (ApiKey.DELETE_TOPICS, 5), (ApiKey.CREATE_PARTITIONS, 3)]
)
def test_too_many_mutations_are_refused_or_by_old_versions_waited_for(
    own: BrokerProcess, ask: Requests, api: ApiKey, strict_from: int
) -> None:
    names = [f"mutated-{api.name.lower()}-{number}" for number in range(3)]
    if api is not ApiKey.CREATE_TOPICS:
        for name in names:
            ask.create(name, 4)

    def mutate(client: Requests, name: str, version: int) -> tuple[ErrorCode, int]:
        topic = {"name": name, "topic_id": None, "num_partitions": 8, "replication_factor": 1, "assignments": ()}
        if api is ApiKey.CREATE_PARTITIONS:
            topic = {"name": name, "count": 12, "assignments": None}
        row = {"configs": (), **topic}
        body = {"topics": [row], "topic_names": [name], "timeout": 10_000, "validate_only": False}
        answer = client.ask(api, body, version)
        (result,) = getattr(answer, {19: "topics", 20: "responses", 37: "results"}[int(api)])
        return ErrorCode(result.error_code), to_ms(answer.throttle_time)

    for strict in (True, False):
        client_id = f"{api.name}-{strict}"
        # 11 s may be saved up: of 0.5 partitions per second the first change uses more than there is.
        alter(ask, {"client-id": client_id}, {"controller_mutation_rate": 0.2})
        with Requests(own.bootstrap, client_id=client_id) as client:
            if strict:
                assert mutate(client, names[0], strict_from) == (ErrorCode.none, 0)
                code, throttle_ms = mutate(client, names[1], strict_from)
                assert code is ErrorCode.throttling_quota_exceeded
                assert throttle_ms > 5_000
            else:
                code, throttle_ms = mutate(client, names[2], strict_from - 1)
                assert code is ErrorCode.none
                assert throttle_ms > 5_000


def test_a_throttled_client_that_leaves_is_noticed_at_once(own: BrokerProcess, ask: Requests) -> None:
    ask.create("left")
    alter(ask, {"client-id": "leaver"}, {"producer_byte_rate": 10.0})
    throttled = "kafka_server_quotas_throttled_connections"
    with Requests(own.bootstrap, client_id="leaver") as producer:
        assert to_ms(produce(producer, "left", 100_000).throttle_time) > 60_000
        assert Scrape(own.metrics_url).total(throttled) == 1
    eventually(lambda: Scrape(own.metrics_url).total(throttled) == 0)


# --- connections


def test_an_address_above_its_rate_is_accepted_and_hung_up_on_later(own: BrokerProcess, ask: Requests) -> None:
    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", own.port), timeout=20, source_address=("127.0.0.77", 0))

    alter(ask, {"ip": "127.0.0.77"}, {"connection_creation_rate": 1.0})
    made = [connect() for _ in range(11)]
    begin = time.monotonic()
    assert made[-1].recv(1) == b"", "the first ten use up the window, the next is not served"
    assert 0.05 < time.monotonic() - begin < 5
    made[0].settimeout(0.01)
    with pytest.raises(TimeoutError):
        made[0].recv(1)
    with Requests(own.bootstrap) as other:
        other.metadata()
    for one in made:
        one.close()


def test_a_listener_above_its_rate_accepts_later(tmp_path: Path) -> None:
    settings = {"listener.name.plaintext.max.connection.creation.rate": "1"}
    with BrokerProcess(tmp_path, settings, standalone=True) as process:
        begin = time.monotonic()
        for _ in range(13):
            with Requests(process.bootstrap) as client:
                client.metadata()
        assert time.monotonic() - begin > 1.5, "the first ten at once, then about one in a second"


def test_other_brokers_hear_of_every_kind_of_change(broker_factory: Any) -> None:
    first, second = broker_factory({"broker.id": "0"}, name="a"), broker_factory({"broker.id": "1"}, name="b")
    with Requests(first.bootstrap) as one, Requests(second.bootstrap) as other:
        for entity in ({"user": "u"}, {"user": "u", "client-id": "c"}, {"client-id": None}, {"ip": None}):
            key = "connection_creation_rate" if "ip" in entity else "consumer_byte_rate"
            assert alter(one, entity, {key: 1e6}) == (ErrorCode.none, None)
        eventually(lambda: len(described(other)) == 4)
        assert described(other) == described(one)
        assert alter(other, {"user": "u", "client-id": "c"}, {"consumer_byte_rate": None}) == (ErrorCode.none, None)
        eventually(lambda: len(described(one)) == 3)
