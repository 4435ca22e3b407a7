"""How each right of broker/protocol/permissions.py is asked for, and a world in which it is.

Used by tests/api/test_permissions.py, and by tests/compat/kafka_answers, which asks Apache Kafka the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol import permissions as p
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import Permission
from broker.security.acl_types import CLUSTER_NAME, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.raw_requests import LATEST, NO_ID, Requests, ask_for, batch, fetch_body
from tests.support.raw_transactions import RawProducer
from tests.support.waiting import eventually

DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.delegation_token_authorization_failed,
}
ANONYMOUS = "User:ANONYMOUS"
KNOWN = "User:known"
_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="admin" user_known="known";'
GUARDED_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
    "super.users": "User:admin",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "group.initial.rebalance.delay.ms": "0",
    "delegation.token.secret.key": "secret",
}
EVERY_ACL = {
    "resource_type_filter": AclResourceType.ANY,
    "pattern_type_filter": PatternType.ANY,
    "operation": AclOperation.ANY,
    "permission_type": AclPermission.ANY,
}


def creation(operation: AclOperation, resource: AclResourceType, principal: str = ANONYMOUS) -> dict[str, Any]:
    return {
        "resource_type": resource,
        "resource_name": CLUSTER_NAME if resource is AclResourceType.CLUSTER else "*",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": AclPermission.ALLOW,
    }


def admin_of(bootstrap: str) -> Requests:
    """The super user of a broker with GUARDED_SETTINGS, at its listener SASL_PLAINTEXT."""
    admin = Requests(bootstrap)
    log_in(admin)
    return admin


def log_in(client: Requests, user: str = "admin") -> None:
    """Make a connection to that listener the super user's, or that of the user `known`."""
    client.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, 1)
    client.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": f"\0{user}\0{user}".encode()}, 1)


def _entry(acl: Any) -> tuple[Any, ...]:
    return acl.principal, acl.host, acl.operation, acl.permission_type


class World:
    """One of each thing, on a broker with an authorizer, and two clients: a super user and one with chosen rights.

    `prefix` begins the name of each thing.
    """

    def __init__(
        self, admin: Requests, mine: Requests, known: Requests | None = None, *, broker_id: int = 0, prefix: str = ""
    ) -> None:
        """`known`: a connection of the user of this name, who has the same rights as `mine`, which did not log in."""
        self.admin, self.mine, self.broker_id, self._prefix = admin, mine, broker_id, prefix
        self.known = known
        self._numbers = itertools.count()
        self.topic, self.group, self.transaction = (
            f"{prefix}known-{kind}" for kind in ("topic", "group", "transaction")
        )
        self.topic_id = self.create(self.topic)
        self.producer = RawProducer(self.admin, self.transaction).begin()
        self.producer.init(timeout_ms=600_000)  # the transaction stays open, however slow the machine is
        assert self.producer.add((self.topic, 0)) == [ErrorCode.none]
        self.admin.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "key": self.group, "coordinator_keys": [self.group]})
        self.commit(self.group)

    def allow(self, *needs: Permission) -> None:
        """Let the other client have these rights, on all resources, and no others."""
        who = [ANONYMOUS] if self.known is None else [ANONYMOUS, KNOWN]
        self.set_acls(creation(need.operation, need.resource, one) for need in needs for one in who)

    def set_acls(self, creations: Iterable[Mapping[str, Any]]) -> None:
        """These ACLs decide, and no others."""
        wanted = list(creations)
        self.admin.ask(ApiKey.DELETE_ACLS, {"filters": [EVERY_ACL]})
        if wanted:
            results = self.admin.ask(ApiKey.CREATE_ACLS, {"creations": wanted}).results
            assert {result.error_code for result in results} == {ErrorCode.none}
        named = {tuple(one.values()) for one in wanted}
        eventually(lambda: self.acls() == named)

    def acls(self) -> set[tuple[Any, ...]]:
        """Those that decide, each with the values of its creation in their order."""
        return {
            (one.resource_type, one.resource_name, one.pattern_type, *_entry(acl))
            for one in self.admin.ask(ApiKey.DESCRIBE_ACLS, EVERY_ACL).resources
            for acl in one.acls
        }

    def create(self, name: str) -> uuid.UUID:
        """A topic that can be used: a broker with KRaft hears of it a little later."""
        made = self.admin.create(name)
        eventually(lambda: self.admin.list_offset(name, LATEST, version=8).error_code is ErrorCode.none)
        return made

    def new(self, kind: str = "made") -> str:
        return f"{self._prefix}{kind}-{next(self._numbers)}"

    def new_topic(self) -> str:
        name = self.new("topic")
        self.create(name)
        return name

    def new_group(self) -> str:
        name = self.new("group")
        self.commit(name)
        return name

    def new_consumer_group(self) -> str:
        name = self.new("consumers")
        joining = consumer_heartbeat(name)(self, 1)
        eventually(lambda: codes_in(self.admin.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, joining)) == {ErrorCode.none})
        return name

    def commit(self, group: str) -> None:
        body = commit_body(self, group)
        eventually(lambda: codes_in(self.admin.ask(ApiKey.OFFSET_COMMIT, body, 9)) == {ErrorCode.none})


def codes_in(answer: Any) -> set[ErrorCode]:
    """Every error code in an answer, whatever its field."""
    found: set[ErrorCode] = set()
    if hasattr(answer, "_fields"):
        for name, value in answer._asdict().items():
            if name.endswith("error_code"):
                found.add(ErrorCode(value))
            else:
                found |= codes_in(value)
    elif isinstance(answer, (list, tuple)):
        for item in answer:
            found |= codes_in(item)
    return found


Body = Callable[[World, int], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """How one right is asked for."""

    body: Body
    others: Sequence[Permission] = ()
    """What the same request needs besides."""
    code: ErrorCode | None = None
    """Of the answer without the right, if it is not that of the right."""
    shows: str = ""
    """What only the answer with the right contains; there is no error code then."""
    look: Callable[[Any], bool] | None = None
    """Tells an answer with the right from one without."""
    logged_in: bool = False
    """Whether only those ask who have logged in."""


def called(world: World) -> dict[str, Any]:
    """The topic, by its name or its id as the version has it."""
    return {"name": world.topic, "topic_id": world.topic_id}


def commit_body(world: World, group: str) -> dict[str, Any]:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_id": "",
        "retention_time": -1,
        "transactional_id": world.transaction,
        "producer_id": 987_654,
        "producer_epoch": 0,
        "topics": [{**called(world), "partitions": [offset]}],
    }


def share_heartbeat(world: World, group: str, member_id: str = "m") -> dict[str, Any]:
    names = {"subscribed_topic_names": [world.topic]}
    return {"group_id": group, "member_id": member_id, "member_epoch": 0, "rack_id": None, **names}


def shared(world: World, version: int) -> dict[str, Any]:
    """A share group whose member has the topic's partition."""
    group = world.new("shared")
    world.admin.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]})
    eventually(lambda: world.admin.ask(ApiKey.SHARE_GROUP_HEARTBEAT, share_heartbeat(world, group)).assignment)
    return {"group_ids": [group], "include_authorized_operations": False}


def share_fetch(world: World, version: int, epoch: int = 0, member_id: str = "m") -> dict[str, Any]:
    """Of a session that the super user has opened, if it is not the first."""
    if epoch:
        world.admin.ask(ApiKey.SHARE_FETCH, share_fetch(world, version, 0, member_id))
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
    asked = {"partition_index": 0, "acknowledgement_batches": [batch] if epoch else ()}
    return {
        "group_id": "shared",
        "member_id": member_id,
        "share_session_epoch": epoch,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 1,
        "batch_size": 1,
        "topics": [{"topic_id": world.topic_id, "partitions": [asked]}],
        "forgotten_topics_data": (),
    }


def share_offsets(world: World, version: int) -> dict[str, Any]:
    return {"groups": [{"group_id": "shared", "topics": partitions(world, "topic_name")}]}


def altered_share_offsets(world: World, version: int) -> dict[str, Any]:
    offsets = [{"partition_index": 0, "start_offset": 0}]
    return {"group_id": world.new("shared"), "topics": [{"topic_name": world.topic, "partitions": offsets}]}


def deleted_share_offsets(world: World, version: int) -> dict[str, Any]:
    body = altered_share_offsets(world, version)
    world.admin.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, body)
    return {"group_id": body["group_id"], "topics": [{"topic_name": world.topic}]}


def produce_body(world: World, transactional_id: str | None = None) -> dict[str, Any]:
    producer: dict[str, Any] = {}
    if transactional_id is not None:
        producer = {"producer_id": 987_654, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    data = {**called(world), "partition_data": [{"index": 0, "records": batch(b"v", **producer)}]}
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 30_000, "topic_data": [data]}


def wanted(world: World, version: int) -> list[Mapping[str, Any]]:
    return [ask_for(world.topic if version < 13 else world.topic_id)]


def partitions(world: World, name: str = "name", index: str = "partitions") -> list[dict[str, Any]]:
    return [{name: world.topic, index: [0]}]


def member(world: World, **more: Any) -> dict[str, Any]:
    one = {"member_id": "m", "group_instance_id": None}
    return {
        "group_id": world.new("group"),
        "generation_id": 1,
        "group_instance_id": None,
        "member_id": "",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "protocols": [{"name": "range", "metadata": b""}],
        "assignments": (),
        "members": [one],
        **more,
    }


def topics_to_create(world: World, version: int) -> dict[str, Any]:
    topic = {"name": world.new(), "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    return {"topics": [topic], "timeout": 30_000, "validate_only": False}


def topic_to_delete(world: World, version: int) -> dict[str, Any]:
    name = world.new_topic()
    return {"topics": [{"name": name, "topic_id": NO_ID}], "topic_names": [name], "timeout": 30_000}


def find(kind: int, name: Callable[[World], str]) -> Body:
    return lambda world, version: {"key_type": kind, "key": name(world), "coordinator_keys": [name(world)]}


def consumer_heartbeat(group: str = "") -> Body:
    def body(world: World, version: int) -> dict[str, Any]:
        return {
            "group_id": group or world.new("consumers"),
            "member_id": world.new("member"),
            "member_epoch": 0,
            "rebalance_timeout": 30_000,
            "subscribed_topic_names": [world.topic],
            "topic_partitions": [],
        }

    return body


def consumer_group(world: World, version: int) -> dict[str, Any]:
    return {"group_ids": [world.new_consumer_group()], "include_authorized_operations": False}


def offsets_of(world: World, version: int) -> dict[str, Any]:
    topics = [{**called(world), "partition_indexes": [0]}]
    return {
        "group_id": world.group,
        "topics": topics,
        "groups": [{"group_id": world.group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": False,
    }


def transaction(world: World, **more: Any) -> dict[str, Any]:
    names = {"transactional_id": world.transaction, "producer_id": 99, "producer_epoch": 0}
    added = {**names, "topics": partitions(world)}
    return {
        **names,
        **{f"v3_and_below_{name}": value for name, value in added.items()},
        "transactions": [{**added, "verify_only": True}],
        "group_id": world.group,
        "committed": False,
        "transaction_timeout": 60_000,
        **more,
    }


def deleted_offsets(world: World, version: int) -> dict[str, Any]:
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    return {"group_id": world.new_group(), "topics": topics}


def markers(world: World, version: int) -> dict[str, Any]:
    marker = {
        "producer_id": 4711,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": partitions(world, index="partition_indexes"),
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    return {"markers": [marker]}


def share_state(world: World, version: int) -> dict[str, Any]:
    asked = {
        "partition": 0,
        "state_epoch": 0,
        "leader_epoch": 0,
        "start_offset": 0,
        "delivery_complete_count": 0,
        "state_batches": [],
    }
    return {"group_id": world.group, "topics": [{"topic_id": world.topic_id, "partitions": [asked]}]}


def settings_of(kind: int, name: Callable[[World], str], **setting: str) -> Body:
    def body(world: World, version: int) -> dict[str, Any]:
        configs = [{"name": key, "value": value, "config_operation": 0} for key, value in setting.items()]
        resource = {
            "resource_type": kind,
            "resource_name": name(world),
            "configuration_keys": None,
            "configs": configs,
        }
        return {"resources": [resource], "validate_only": False, "include_synonyms": False}

    return body


def scram_deletion(user: str) -> Body:
    return lambda world, version: {"deletions": [{"name": user, "mechanism": 1}], "upsertions": ()}


TOKEN_OF_OTHER = {
    "owner_principal_type": "User",
    "owner_principal_name": "other",
    "renewers": (),
    "max_lifetime": -1,
}


def tokens(world: World, version: int) -> dict[str, Any]:
    """Of all owners; there is one that the super user has created."""
    world.admin.ask(ApiKey.CREATE_DELEGATION_TOKEN, {**TOKEN_OF_OTHER, "owner_principal_name": "admins"}, 3)
    return {"owners": None}


def shows_admins(answer: Any) -> bool:
    return any(token.principal_name == "admins" for token in answer.tokens)


def log_start(world: World, version: int) -> dict[str, Any]:
    topic = {"name": world.topic, "partitions": [{"partition_index": 0, "offset": 0}]}
    return {"topics": [topic], "timeout": 30_000}


def follower(world: World, version: int) -> dict[str, Any]:
    state = {"replica_id": 7, "replica_epoch": -1}
    return {**fetch_body(wanted(world, version)), "replica_id": 7, "replica_state": state}


def end_of_epoch(world: World, version: int) -> dict[str, Any]:
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": world.topic, "partitions": [asked]}]}


def latest(world: World, version: int) -> dict[str, Any]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": world.topic, "partitions": [asked]}]}


def metadata_of(name: Callable[[World], str], *, create: bool = False) -> Body:
    return lambda world, version: {"topics": [{"name": name(world)}], "allow_auto_topic_creation": create}


TOPIC, GROUP, BROKER = 2, 32, 4
OPERATIONS = {"include_cluster_authorized_operations": True, "topics": (), "endpoint_type": 1}


def shows_operations(answer: Any) -> bool:
    return bool(answer.cluster_authorized_operations)


def is_anything(world: World, version: int) -> dict[str, Any]:
    return {}


CASES: dict[Permission, Case] = {
    p.PRODUCE_TRANSACTION: Case(lambda w, v: produce_body(w, w.transaction), [p.PRODUCE_TOPIC]),
    p.PRODUCE_TOPIC: Case(lambda w, v: produce_body(w)),
    p.FETCH_TOPIC: Case(lambda w, v: fetch_body(wanted(w, v))),
    p.FETCH_AS_FOLLOWER: Case(follower, code=ErrorCode.topic_authorization_failed),
    p.LIST_OFFSETS_TOPIC: Case(latest),
    p.END_OF_EPOCH_AS_BROKER: Case(end_of_epoch, code=ErrorCode.topic_authorization_failed),
    p.END_OF_EPOCH_TOPIC: Case(end_of_epoch),
    p.DELETE_RECORDS_TOPIC: Case(log_start),
    p.DESCRIBE_PRODUCERS_TOPIC: Case(lambda w, v: {"topics": partitions(w, index="partition_indexes")}),
    p.METADATA_TOPIC: Case(metadata_of(lambda w: w.topic)),
    p.METADATA_CREATE_ANY: Case(
        metadata_of(World.new, create=True), [p.METADATA_TOPIC], ErrorCode.topic_authorization_failed
    ),
    p.METADATA_CREATE: Case(metadata_of(World.new, create=True), [p.METADATA_TOPIC]),
    p.METADATA_CLUSTER: Case(lambda w, v: OPERATIONS, look=shows_operations),
    p.DESCRIBE_TOPIC_PARTITIONS_TOPIC: Case(
        lambda w, v: {"topics": [{"name": w.topic}], "response_partition_limit": 10, "cursor": None}
    ),
    p.DESCRIBE_CLUSTER_OPERATIONS: Case(lambda w, v: OPERATIONS, look=shows_operations),
    p.CREATE_TOPICS_ANY: Case(topics_to_create, [p.CREATE_TOPICS_CONFIGS], code=ErrorCode.topic_authorization_failed),
    p.CREATE_TOPICS_TOPIC: Case(topics_to_create, [p.CREATE_TOPICS_CONFIGS]),
    p.CREATE_TOPICS_CONFIGS: Case(topics_to_create, [p.CREATE_TOPICS_TOPIC]),
    p.DELETE_TOPICS_DESCRIBE: Case(
        lambda w, v: {"topics": [{"name": None, "topic_id": w.topic_id}], "timeout": 30_000},
        look=lambda answer: answer.responses[0].name is not None,
    ),
    p.DELETE_TOPICS_TOPIC: Case(topic_to_delete),
    p.CREATE_PARTITIONS_TOPIC: Case(
        lambda w, v: {
            "topics": [{"name": w.new_topic(), "count": 2, "assignments": None}],
            "timeout": 30_000,
            "validate_only": False,
        }
    ),
    p.FIND_SHARE: Case(find(2, lambda w: f"{w.group}:AAAAAAAAAAAAAAAAAAAAAQ:0")),
    **{need: Case(share_state) for need in p.SHARE_STATE_AS_BROKER.values()},
    p.FIND_GROUP: Case(find(0, lambda w: w.group)),
    p.JOIN_GROUP: Case(lambda w, v: member(w)),
    p.SYNC_GROUP: Case(lambda w, v: member(w, member_id="m")),
    p.HEARTBEAT: Case(lambda w, v: member(w, member_id="m")),
    p.LEAVE_GROUP: Case(lambda w, v: member(w, member_id="m")),
    p.CONSUMER_HEARTBEAT: Case(consumer_heartbeat(), [p.CONSUMER_HEARTBEAT_TOPIC]),
    p.CONSUMER_HEARTBEAT_TOPIC: Case(consumer_heartbeat(), [p.CONSUMER_HEARTBEAT]),
    p.DESCRIBE_CONSUMERS_GROUP: Case(consumer_group, [p.DESCRIBE_CONSUMERS_TOPIC]),
    p.DESCRIBE_CONSUMERS_TOPIC: Case(consumer_group, [p.DESCRIBE_CONSUMERS_GROUP]),
    p.COMMIT_GROUP: Case(lambda w, v: commit_body(w, w.group), [p.COMMIT_TOPIC]),
    p.COMMIT_TOPIC: Case(lambda w, v: commit_body(w, w.group), [p.COMMIT_GROUP]),
    p.FETCH_OFFSETS_GROUP: Case(offsets_of, [p.FETCH_OFFSETS_TOPIC]),
    p.FETCH_OFFSETS_TOPIC: Case(offsets_of, [p.FETCH_OFFSETS_GROUP]),
    p.DESCRIBE_GROUPS_GROUP: Case(lambda w, v: {"groups": [w.group]}),
    p.LIST_GROUPS_ANY: Case(is_anything, shows="known-group"),
    p.LIST_GROUPS_GROUP: Case(is_anything, shows="known-group"),
    p.DELETE_GROUPS_GROUP: Case(lambda w, v: {"groups_names": [w.new_group()]}),
    p.DELETE_OFFSETS_GROUP: Case(deleted_offsets, [p.DELETE_OFFSETS_TOPIC]),
    p.DELETE_OFFSETS_TOPIC: Case(deleted_offsets, [p.DELETE_OFFSETS_GROUP]),
    p.SHARE_HEARTBEAT: Case(lambda w, v: share_heartbeat(w, w.new("group")), [p.SHARE_HEARTBEAT_TOPIC]),
    p.SHARE_HEARTBEAT_TOPIC: Case(lambda w, v: share_heartbeat(w, w.new("group")), [p.SHARE_HEARTBEAT]),
    p.DESCRIBE_SHARES_GROUP: Case(shared, [p.DESCRIBE_SHARES_TOPIC]),
    p.DESCRIBE_SHARES_TOPIC: Case(shared, [p.DESCRIBE_SHARES_GROUP]),
    p.SHARE_FETCH_GROUP: Case(share_fetch, [p.SHARE_FETCH_TOPIC]),
    p.SHARE_FETCH_TOPIC: Case(share_fetch, [p.SHARE_FETCH_GROUP]),
    p.SHARE_ACKNOWLEDGE_GROUP: Case(lambda w, v: share_fetch(w, v, 1, w.new()), [p.SHARE_ACKNOWLEDGE_TOPIC]),
    p.SHARE_ACKNOWLEDGE_TOPIC: Case(lambda w, v: share_fetch(w, v, 1, w.new()), [p.SHARE_ACKNOWLEDGE_GROUP]),
    p.DESCRIBE_SHARE_OFFSETS_GROUP: Case(share_offsets, [p.DESCRIBE_SHARE_OFFSETS_TOPIC]),
    p.DESCRIBE_SHARE_OFFSETS_TOPIC: Case(share_offsets, [p.DESCRIBE_SHARE_OFFSETS_GROUP]),
    p.ALTER_SHARE_OFFSETS_GROUP: Case(altered_share_offsets, [p.ALTER_SHARE_OFFSETS_TOPIC]),
    p.ALTER_SHARE_OFFSETS_TOPIC: Case(altered_share_offsets, [p.ALTER_SHARE_OFFSETS_GROUP]),
    p.DELETE_SHARE_OFFSETS_GROUP: Case(deleted_share_offsets, [p.DELETE_SHARE_OFFSETS_TOPIC]),
    p.DELETE_SHARE_OFFSETS_TOPIC: Case(deleted_share_offsets, [p.DELETE_SHARE_OFFSETS_GROUP]),
    p.FIND_TRANSACTION: Case(find(1, lambda w: w.transaction)),
    p.INIT_TRANSACTION: Case(
        lambda w, v: transaction(w, transactional_id=w.new("id"), producer_id=-1, producer_epoch=-1)
    ),
    p.INIT_IDEMPOTENT: Case(lambda w, v: transaction(w, transactional_id=None, producer_id=-1, producer_epoch=-1)),
    p.INIT_IDEMPOTENT_TOPIC: Case(
        lambda w, v: transaction(w, transactional_id=None, producer_id=-1, producer_epoch=-1),
        code=ErrorCode.cluster_authorization_failed,
    ),
    p.ADD_PARTITIONS_TRANSACTION: Case(lambda w, v: transaction(w), [p.ADD_PARTITIONS_TOPIC]),
    p.ADD_PARTITIONS_TOPIC: Case(lambda w, v: transaction(w), [p.ADD_PARTITIONS_TRANSACTION]),
    p.ADD_PARTITIONS_AS_BROKER: Case(lambda w, v: transaction(w)),
    p.ADD_OFFSETS_TRANSACTION: Case(lambda w, v: transaction(w), [p.ADD_OFFSETS_GROUP]),
    p.ADD_OFFSETS_GROUP: Case(lambda w, v: transaction(w), [p.ADD_OFFSETS_TRANSACTION]),
    p.END_TRANSACTION: Case(lambda w, v: transaction(w)),
    p.COMMIT_TRANSACTION: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION_GROUP, p.COMMIT_TRANSACTION_TOPIC]
    ),
    p.COMMIT_TRANSACTION_GROUP: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION, p.COMMIT_TRANSACTION_TOPIC]
    ),
    p.COMMIT_TRANSACTION_TOPIC: Case(
        lambda w, v: commit_body(w, w.group), [p.COMMIT_TRANSACTION, p.COMMIT_TRANSACTION_GROUP]
    ),
    p.WRITE_MARKERS_AS_ADMIN: Case(markers),
    p.WRITE_MARKERS_AS_BROKER: Case(markers),
    p.DESCRIBE_TRANSACTION: Case(lambda w, v: {"transactional_ids": [w.transaction]}),
    p.DESCRIBE_TRANSACTION_TOPIC: Case(
        lambda w, v: {"transactional_ids": [w.transaction]}, [p.DESCRIBE_TRANSACTION], shows="known-topic"
    ),
    p.LIST_TRANSACTION: Case(is_anything, shows="known-transaction"),
    p.DESCRIBE_CONFIGS_TOPIC: Case(settings_of(TOPIC, lambda w: w.topic)),
    p.DESCRIBE_CONFIGS_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.DESCRIBE_CONFIGS_CLUSTER: Case(settings_of(BROKER, lambda w: str(w.broker_id))),
    p.ALTER_CONFIGS_TOPIC: Case(settings_of(TOPIC, World.new_topic, **{"retention.ms": "1000"})),
    p.ALTER_CONFIGS_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.ALTER_CONFIGS_CLUSTER: Case(settings_of(BROKER, lambda w: "")),
    p.INCREMENTAL_ALTER_TOPIC: Case(settings_of(TOPIC, World.new_topic, **{"retention.ms": "1000"})),
    p.INCREMENTAL_ALTER_GROUP: Case(settings_of(GROUP, lambda w: w.group)),
    p.INCREMENTAL_ALTER_CLUSTER: Case(settings_of(BROKER, lambda w: "")),
    p.LIST_CONFIG_RESOURCES: Case(is_anything),
    p.DESCRIBE_QUOTAS: Case(lambda w, v: {"components": (), "strict": False}),
    p.ALTER_QUOTAS: Case(
        lambda w, v: {
            "entries": [{"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": ()}],
            "validate_only": True,
        }
    ),
    p.DESCRIBE_SCRAM: Case(lambda w, v: {"users": [{"name": "nobody"}]}),
    p.ALTER_SCRAM: Case(scram_deletion("nobody")),
    p.CREATE_TOKEN: Case(lambda w, v: TOKEN_OF_OTHER, logged_in=True),
    p.DESCRIBE_TOKEN: Case(tokens, look=shows_admins, logged_in=True),
    p.DESCRIBE_TOKENS_OF_USER: Case(tokens, look=shows_admins, logged_in=True),
    p.DESCRIBE_ACLS: Case(lambda w, v: EVERY_ACL),
    p.CREATE_ACLS: Case(
        lambda w, v: {"creations": [creation(AclOperation.READ, AclResourceType.TOPIC, "User:somebody")]}
    ),
    p.DELETE_ACLS: Case(lambda w, v: {"filters": [{**EVERY_ACL, "principal_filter": "User:nobody"}]}),
    p.ELECT_LEADERS: Case(lambda w, v: {"election_type": 0, "topic_partitions": partitions(w, "topic")}),
    p.ALTER_REASSIGNMENTS: Case(
        lambda w, v: {"topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "replicas": None}]}]}
    ),
    p.LIST_REASSIGNMENTS: Case(lambda w, v: {"topics": None}),
    p.ALTER_LOG_DIRS: Case(lambda w, v: {"dirs": [{"path": "/nowhere", "topics": partitions(w)}]}),
    p.DESCRIBE_LOG_DIRS: Case(lambda w, v: {"topics": None}, look=lambda answer: bool(answer.results)),
}
