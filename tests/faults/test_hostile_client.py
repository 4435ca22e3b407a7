"""A client that has logged in and has no rights: it learns nothing, not even what exists, and changes nothing.

It asks every API in every version that is served, about what exists and about what does not. The answers differ only
in the names that it knows already.
"""

from __future__ import annotations

import codecs
import dataclasses
import statistics
import struct
import time
import typing
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import unwrap_optional
from broker.protocol.messages import decode_response, encode_request
from broker.security.scram import ScramMechanism
from tests.api.test_group_offsets import await_coordinator
from tests.support.broker_process import BrokerProcess
from tests.support.hostile_requests import BITS, HostileRequests
from tests.support.logged_in import ROOT, LoggedIn, acl_settings
from tests.support.randomness import seeded
from tests.support.raw_requests import NO_ID, SERVED, ask_for, batch, fetch_body, versions
from tests.support.raw_transactions import RawProducer
from tests.support.waiting import eventually

# --- Requests of every API that name given resources: the same requests about what exists, and about what does not.
# Made from kio's schemas, as those of hostile_requests.py, so that an API that is added is asked from its first day.

PLAIN_ROUNDS = 3
"""So many rounds ask plain questions, which would be answered if they were allowed; later ones are random."""

_TOPIC, _BROKER, _GROUP = 2, 4, 32
_FIRST_METADATA_BY_ID = 12
_NULL = ("group_instance_id", "transactional_id_pattern", "cursor")
_PLAIN_INTS = {
    "acks": -1,
    "config_operation": 0,
    "count": 5,
    "coordinator_epoch": 0,
    "duration_filter": -1,
    "election_type": 0,
    "endpoint_type": 1,
    "generation_id": 1,
    "generation_id_or_member_epoch": 1,
    "isolation_level": 0,
    "iterations": 4096,
    "leader_epoch": 0,
    "max_bytes": 1 << 20,
    "mechanism": 1,
    "min_bytes": 0,
    "num_partitions": 1,
    "operation": 3,
    "partition_max_bytes": 1 << 20,
    "pattern_type_filter": 3,
    "permission_type": 3,
    "replication_factor": 1,
    "resource_pattern_type": 3,
    "resource_type_filter": 2,
    "response_partition_limit": 10,
    "committed_offset": 1,
    "offset": 1,
    "fetch_offset": 0,
    "timestamp": -1,
}
"""-1 where it says epoch or id, else 0."""


class Names(NamedTuple):
    """Of resources of each kind. Two of these whose texts have the same lengths make requests of the same lengths."""

    topic: str
    group: str
    transactional_id: str
    member: str
    user: str
    path: str
    topic_id: uuid.UUID
    producer_id: int
    producer_epoch: int

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.topic, self.group, self.transactional_id, self.member, self.user, self.path)

    def renamed(self, rename: Callable[[str], str], topic_id: uuid.UUID) -> Names:
        """Others of the same producer, which answers show in binary."""
        topic, group, transactional_id, member, user, path = map(rename, self.texts)
        producer = (self.producer_id, self.producer_epoch)
        return Names(topic, group, transactional_id, member, user, path, topic_id, *producer)


class NamedRequests(HostileRequests):
    """One round of requests; the same seed and round make the same requests for other names."""

    def __init__(self, names: Names, seed: int, turn: int) -> None:
        super().__init__(seeded(seed), names.topic_id)
        self._names = names
        self._turn = turn
        self._plain = turn < PLAIN_ROUNDS
        self._entity = ""
        self._version = 0

    def body(self, api: ApiKey, version: int) -> dict[str, Any]:
        self._version = version
        made = super().body(api, version)
        if api is ApiKey.FIND_COORDINATOR:
            made["key_type"] = self._turn % 2
            made["key"] = self._names.transactional_id if self._turn % 2 else self._names.group
            made["coordinator_keys"] = [made["key"]]
        if api in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS) and self._plain:
            kind, name = ((_TOPIC, self._names.topic), (_GROUP, self._names.group), (_BROKER, "0"))[self._turn]
            for resource in made["resources"]:
                resource.update(resource_type=kind, resource_name=name)
        if api is ApiKey.FETCH:
            made["session_epoch"] = -1  # the id of a new session is random
        if api is ApiKey.PRODUCE and made["acks"] == 0:
            made["acks"] = 1  # nothing would be answered
        return made

    def _struct(self, entity: Any) -> dict[str, Any]:
        outer, self._entity = self._entity, entity.__name__
        made = super()._struct(entity)
        self._entity = outer
        if "topic_id" in made and "name" in made and made["name"] is not None:
            made["topic_id"] = NO_ID  # DeleteTopics takes one or the other
        return made

    def _value(self, name: str, hint: Any, kafka_type: str) -> Any:
        if not self._plain:
            return super()._value(name, hint, kafka_type)
        inner, optional = unwrap_optional(hint)
        if name in _NULL or (optional and self._turn == 1 and self._is_by_id(name)):
            return None
        if name.endswith("_filters") or name in ("states_filter", "types_filter", "forgotten_topics_data"):
            return [] if typing.get_origin(inner) is tuple else None
        if typing.get_origin(inner) is tuple:
            return [self._value(name, typing.get_args(inner)[0], kafka_type)]
        return self._struct(inner) if dataclasses.is_dataclass(inner) else self._scalar(name, kafka_type)

    def _is_by_id(self, name: str) -> bool:
        """Whether the plain question of this turn leaves out a name for an id, or a transaction."""
        if name == "name":
            return self._entity != "MetadataRequestTopic" or self._version >= _FIRST_METADATA_BY_ID
        return name == "transactional_id" and self._entity == "ProduceRequest"

    def _scalar(self, name: str, kafka_type: str) -> Any:
        if kafka_type == "string":
            return self._text(name)
        if name.endswith("producer_id"):
            return self._names.producer_id
        if name.endswith("producer_epoch"):
            return self._names.producer_epoch
        if kafka_type == "uuid":
            return self._names.topic_id
        if kafka_type == "bool":
            return name in ("committed", "transaction_result") if self._plain else self._dice.random() < 0.5
        if not self._plain:
            return super()._scalar(name, kafka_type)
        if kafka_type in BITS:
            return self._plain_int(name)
        match name:
            case "records":
                return batch(b"hostile")
            case "salted_password":
                return b"p" * 32
            case "salt":
                return b"s" * 16
        return 1000 if "timeout" in name else super()._scalar(name, kafka_type)

    def _plain_int(self, name: str) -> int:
        found = _PLAIN_INTS.get(name)
        if found is not None:
            return found
        if name == "resource_type":
            return _TOPIC
        return -1 if "epoch" in name or name == "replica_id" else 0

    def _text(self, name: str) -> str:
        names = self._names
        if name == "name":
            if "Scram" in self._entity or "User" in self._entity:
                return names.user
            if "Config" in self._entity:
                return "retention.ms"
            return "range" if "Protocol" in self._entity else names.topic
        if "transactional_id" in name:
            return names.transactional_id
        if "group" in name:
            return names.group
        if "topic" in name or name.startswith("resource_name"):
            return names.topic
        match name:
            case "member_id":
                return names.member
            case "path":
                return names.path
            case "principal" | "principal_filter":
                return f"User:{names.user}"
            case "host" | "host_filter":
                return "*"
            case "value":
                return "1000"
            case "configuration_keys":
                return "retention.ms"
            case "protocol_type" | "protocol_name":
                return "consumer" if name == "protocol_type" else "range"
        return self._dice.choice(("", "x", "Empty", "Ongoing", "Stable"))


# --- the tests

MALLORY = "mallory"
LOGIN_APIS = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
BY_ID = {(ApiKey.PRODUCE, 13), (ApiKey.FETCH, 13), (ApiKey.DELETE_TOPICS, 6), (ApiKey.METADATA, 12)}
"""API and first version that tell an id that exists from one that does not, as in Kafka: ids are random, and it does
not count them as secret (KafkaApis.handleDeleteTopicsRequest, handleTopicMetadataRequest)."""
ANSWERED = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
"""APIs that refuse nobody: they show nothing secret, or only what one may see."""
REFUSALS = (
    "authorization_failed",
    "unknown_topic_id",
    "delegation_token_auth_disabled",
    "invalid_principal_type",
    "DescribeLogDirsResponse(throttle_time=datetime.timedelta(0), results=())",
)
"""What an answer has that refuses. DescribeLogDirs has no code before version 3, and is empty. This broker gives no
delegation tokens; tests/api/test_delegation_tokens.py has those that may not be changed or seen by others."""

VALUE, CONFIG, METADATA = b"s3cret-record", "86399123", "s3cret-metadata"
SUBSCRIPTION, ASSIGNMENT, CLIENT = b"s3cret-subscription", b"s3cret-assignment", "s3cret-client"


class Target(NamedTuple):
    broker: BrokerProcess
    there: Names
    """What exists."""
    missing: Names
    """Names of the same lengths, of what does not."""


def made_up(text: str) -> str:
    """A name of the same length, that is legal wherever the other one is."""
    return codecs.encode(text, "rot13")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    settings = {
        **acl_settings(MALLORY),
        "auto.create.topics.enable": "true",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.max.session.timeout.ms": "1800000",
    }
    data = tmp_path_factory.mktemp("hostile")
    with BrokerProcess(data, settings, standalone=True) as broker, LoggedIn(broker.bootstrap) as root:
        there = furnish(broker, root, str(data / "broker"))
        yield Target(broker, there, there.renamed(made_up, uuid.uuid4()))
        assert broker.running
        assert "Traceback" not in broker.output, broker.output[-6000:]


def furnish(broker: BrokerProcess, root: LoggedIn, log_dir: str) -> Names:
    """A topic with records and settings, a group with a member and an offset, an open transaction, a user, an ACL."""
    topic, group, user = "orders-2024", "billing-group", "scram-user"
    topic_id = root.create(topic, 2, retention_ms=CONFIG)
    root.put(topic, VALUE, b"two", b"three")
    await_coordinator(root, group)
    member = join(root, group)
    offset = {"partition_index": 0, "committed_offset": 2, "committed_metadata": METADATA}
    commit = {"group_id": group, "generation_id_or_member_epoch": 1, "member_id": member, "group_instance_id": None}
    root.ask(ApiKey.OFFSET_COMMIT, {**commit, "topics": [{"name": topic, "partitions": [offset]}]})
    producer = RawProducer(root, "payments-tx").begin(timeout_ms=900_000)
    assert producer.add((topic, 1)) == [ErrorCode.none]
    assert producer.send(topic, VALUE, partition=1) is ErrorCode.none
    admin_settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ROOT,
        "sasl.password": f"{ROOT}-s3cret",
    }
    with Cluster(admin_settings) as cluster:
        Admin(cluster).set_password(user, "s3cret", [ScramMechanism("SCRAM-SHA-256")])
    return Names(
        topic, group, producer.transactional_id, member, user, log_dir, topic_id, producer.producer_id, producer.epoch
    )


def join(root: LoggedIn, group: str) -> str:
    """A member that stays without a heartbeat; gives its id."""
    body: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 1_800_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        "reason": None,
    }
    answer = root.ask(ApiKey.JOIN_GROUP, body)
    if answer.error_code is ErrorCode.member_id_required:
        answer = root.ask(ApiKey.JOIN_GROUP, {**body, "member_id": answer.member_id})
    assert answer.error_code is ErrorCode.none, answer
    assignments = [{"member_id": answer.member_id, "assignment": ASSIGNMENT}]
    names = {"group_id": group, "generation_id": 1, "member_id": answer.member_id, "group_instance_id": None}
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    synced = root.ask(ApiKey.SYNC_GROUP, {**names, **protocol, "assignments": assignments})
    assert synced.error_code is ErrorCode.none, synced
    return str(answer.member_id)


def state(target: Target) -> dict[str, Any]:
    """All that a super user can see, and that requests could change."""
    names = target.there
    with LoggedIn(target.broker.bootstrap) as root:
        listed = root.ask(ApiKey.METADATA, {"topics": None, "allow_auto_topic_creation": False})
        topics = {str(topic.name): len(topic.partitions) for topic in listed.topics}
        spots = [(topic, index) for topic, count in topics.items() for index in range(count)]
        resources = [(2, names.topic), (4, "0"), (4, ""), (8, "0")]
        asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources]
        flags = {"include_synonyms": False, "include_documentation": False}
        group_filters = {"states_filter": (), "types_filter": ()}
        tx_filters = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        every_group = {"group_id": names.group, "member_id": None, "member_epoch": -1, "topics": None}
        found: dict[str, Any] = {
            "topics": listed.topics,
            "ends": {spot: root.list_offset(spot[0], -1, spot[1]) for spot in spots},
            "starts": {spot: root.list_offset(spot[0], -2, spot[1]) for spot in spots},
            "configs": root.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": asked, **flags}),
            "groups": root.ask(ApiKey.LIST_GROUPS, group_filters),
            "members": root.ask(
                ApiKey.DESCRIBE_GROUPS, {"groups": [names.group], "include_authorized_operations": False}
            ),
            "offsets": root.ask(ApiKey.OFFSET_FETCH, {"groups": [every_group], "require_stable": False}),
            "acls": root.acls(),
            "users": root.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}),
            "transactions": root.ask(ApiKey.LIST_TRANSACTIONS, {**tx_filters, "transactional_id_pattern": None}),
            "transaction": root.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [names.transactional_id]}),
            "reassignments": root.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"timeout": 1000, "topics": None}),
        }
    return found


# --- what a request is answered


HUNG_UP = b"the broker hung up"


class Mallory:
    """Asks, and logs in again where the broker hung up."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ask: LoggedIn | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ask is not None:
            self._ask.close()

    def answer(self, api: ApiKey, version: int, body: dict[str, Any]) -> bytes:
        """The frame of the answer without its correlation id, or HUNG_UP."""
        if self._ask is None:
            self._ask = LoggedIn(self._bootstrap, MALLORY)
        try:
            self._ask.socket.sendall(encode_request(api, version, 7, "mallory", body))
            (length,) = struct.unpack(">i", self._ask.read(4))
            return self._ask.read(length)[4:]
        except ConnectionError:
            self._ask.close()
            self._ask = None
            return HUNG_UP


def secrets(names: Names) -> list[bytes]:
    texts = [CONFIG, METADATA, CLIENT, *names.texts]
    return [VALUE, SUBSCRIPTION, ASSIGNMENT, *(text.encode() for text in texts)]


def readable(api: ApiKey, version: int, frame: bytes) -> object:
    return "hung up" if frame == HUNG_UP else decode_response(api, version, b"\0\0\0\7" + frame)[1]


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_existing_and_made_up_names_are_answered_alike_and_nothing_changes(target: Target, rounds: int) -> None:
    before = state(target)
    there, missing = target.there, target.missing
    differing: list[str] = []
    answered: list[str] = []
    showing: list[str] = []
    asked = 0
    with Mallory(target.broker.bootstrap) as mallory:
        for api in sorted(set(SERVED) - LOGIN_APIS):
            for version in versions(api):
                for turn in range(rounds):
                    seed = hash((int(api), version, turn))
                    frames = {
                        names: mallory.answer(api, version, NamedRequests(names, seed, turn).body(api, version))
                        for names in (missing, there)
                    }
                    asked += 2
                    shown = frames[missing]
                    for of_there, of_missing in zip(there.texts, missing.texts, strict=True):
                        shown = shown.replace(of_missing.encode(), of_there.encode())
                    shown = shown.replace(missing.topic_id.bytes, there.topic_id.bytes)
                    what = f"{api.name} version {version}, round {turn}: "
                    if shown != frames[there] and not tells_ids(
                        api, version, readable(api, version, frames[there]), there
                    ):
                        both = (readable(api, version, frames[one]) for one in (missing, there))
                        differing.append(what + "\n    ".join(map(str, both)))
                    if turn < PLAIN_ROUNDS and api not in ANSWERED:
                        answers = [str(readable(api, version, frame)) for frame in frames.values()]
                        answered += [what + one for one in answers if not any(code in one for code in REFUSALS)]
                    showing += [f"{what}{one!r}" for one in secrets(there) if one in frames[missing]]
                    named = {one.encode() for one in there.texts}
                    showing += [f"{what}{one!r}" for one in set(secrets(there)) - named if one in frames[there]]
    assert not differing, "\n".join(differing[:20])
    assert not answered, "\n".join(answered[:20])
    assert not showing, "\n".join(showing[:20])
    assert asked > 1000
    after = state(target)
    for part, found in before.items():
        assert after[part] == found, part


def tells_ids(api: ApiKey, version: int, answer: Any, names: Names) -> bool:
    """Whether the answer is one that may tell that an id exists, and tells nothing else, not even the topic's name."""
    if answer == "hung up" or not any(api is one and version >= first for one, first in BY_ID):
        return False
    if api is ApiKey.FETCH:
        parts = [part for topic in answer.responses if topic.topic_id == names.topic_id for part in topic.partitions]
        silent = all(part.high_watermark == part.log_start_offset == -1 and not part.records for part in parts)
        return silent and {part.error_code for part in parts} == {ErrorCode.topic_authorization_failed}
    if api is ApiKey.PRODUCE:
        known = [row for row in answer.responses if row.topic_id == names.topic_id]
        told = {part.error_code for row in known for part in row.partition_responses}
        return told <= {ErrorCode.topic_authorization_failed} and names.topic not in str(answer)
    rows = answer.topics if api is ApiKey.METADATA else answer.responses
    by_id = [row for row in rows if row.name is None]
    codes = {row.error_code for row in by_id if row.topic_id == names.topic_id}
    return codes == {ErrorCode.topic_authorization_failed} and names.topic not in str(by_id)


def test_a_client_without_rights_sees_empty_lists(target: Target) -> None:
    groups = {"states_filter": (), "types_filter": ()}
    filters = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
    with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
        for version in versions(ApiKey.METADATA):
            topics: dict[str, Any] = {"topics": [] if version == 0 else None, "allow_auto_topic_creation": True}
            assert ask.ask(ApiKey.METADATA, topics, version).topics == ()
        for version in versions(ApiKey.LIST_GROUPS):
            assert ask.ask(ApiKey.LIST_GROUPS, groups, version).groups == ()
        for version in versions(ApiKey.LIST_TRANSACTIONS):
            found = ask.ask(ApiKey.LIST_TRANSACTIONS, {**filters, "transactional_id_pattern": ".*"}, version)
            assert found.transaction_states == ()
        page = {"topics": (), "response_partition_limit": 100, "cursor": None}
        assert ask.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, page).topics == ()


def test_nothing_is_written_without_an_answer_either(target: Target) -> None:
    before = state(target)
    for names in (target.there, target.missing):
        for version in versions(ApiKey.PRODUCE):
            with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
                data = {"index": 0, "records": batch(b"hostile")}
                topics = [{"name": names.topic, "partition_data": [data]}]
                body = {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": topics}
                ask.send(ApiKey.PRODUCE, body, version)
                assert ask.is_hung_up(), "it is how a client without an answer learns of an error, as in Kafka"
    assert state(target) == before


def test_a_fetch_session_shows_nothing(target: Target) -> None:
    """Versions with names; those with ids tell the codes of ids that exist, as fetches without a session do."""
    for version in range(7, 13):
        shown = []
        for names in (target.there, target.missing):
            with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
                wanted = [ask_for(names.topic)]
                first = ask.ask(ApiKey.FETCH, fetch_body(wanted, session_id=0, session_epoch=0), version)
                more = fetch_body([], session_id=first.session_id, session_epoch=1)
                second = ask.ask(ApiKey.FETCH, more, version)
                text = f"{first.responses} {second.responses} {second.error_code!r} {first.error_code!r}"
                shown.append(text.replace(names.topic, "?"))
        assert shown[0] == shown[1]
        assert "topic_authorization_failed" in shown[0]


# --- how long an answer takes


def list_offsets(names: Names) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": names.topic, "partitions": [asked]}]}


TIMED: dict[ApiKey, Callable[[Names], dict[str, Any]]] = {
    ApiKey.METADATA: lambda names: {
        "topics": [{"name": names.topic, "topic_id": NO_ID}],
        "allow_auto_topic_creation": False,
    },
    ApiKey.FETCH: lambda names: fetch_body([ask_for(names.topic)]),
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.DESCRIBE_GROUPS: lambda names: {"groups": [names.group], "include_authorized_operations": True},
}


@pytest.mark.parametrize("api", TIMED, ids=lambda api: api.name)
def test_the_time_of_an_answer_does_not_tell_what_exists(target: Target, api: ApiKey) -> None:
    """Medians of many, in turns; the best of three tries, because other processes take their share of the machine."""
    version = 12 if api is ApiKey.FETCH else SERVED[api][1]
    ratios = []
    with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
        for _ in range(3):
            taken: dict[Names, list[float]] = {target.there: [], target.missing: []}
            order = [target.there, target.missing] * 200
            seeded(1).shuffle(order)
            for names in order:
                body = TIMED[api](names)
                started = time.perf_counter()
                ask.ask(api, body, version)
                taken[names].append(time.perf_counter() - started)
            there, missing = (statistics.median(taken[names]) for names in (target.there, target.missing))
            ratios.append(max(there, missing) / min(there, missing))
            if ratios[-1] < 1.5:
                return
    pytest.fail(f"medians differ by {ratios}")


def test_the_log_of_the_broker_names_who_was_denied_what(target: Target) -> None:
    with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
        ask.metadata(target.there.topic)
    line = (
        f"Principal = User:{MALLORY} is Denied Operation = Describe from host = 127.0.0.1 on resource = "
        f"Topic:LITERAL:{target.there.topic} for request = Metadata with resourceRefCount = 1\n"
    )
    eventually(lambda: line in target.broker.output)
    assert Path(target.there.path).is_dir()


def test_a_request_for_many_partitions_leaves_one_line(target: Target) -> None:
    """As in Kafka: otherwise a few bytes of a request would be 200 of the log."""
    topic = target.missing.topic
    with LoggedIn(target.broker.bootstrap, MALLORY) as ask:
        ask.fetch([ask_for(topic, partition=number) for number in range(5000)], version=12)
    denied = f"Operation = Read from host = 127.0.0.1 on resource = Topic:LITERAL:{topic} for request = Fetch with "
    eventually(lambda: f"{denied}resourceRefCount = 5000\n" in target.broker.output)
