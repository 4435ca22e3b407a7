"""Administration of a cluster: topics, settings, groups, transactions, data directories, users, ACLs.

Every method blocks until it is done, retries what is retriable, and raises BrokerError with the broker's message.
What the methods take and return is in admin_types.py.

Groups may be of every kind: classic, consumer (KIP-848) and share (KIP-932).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from broker.client.admin_rows import (
    acl_filter,
    acl_row,
    creatable_topic,
    decode_acl,
    decode_config_entry,
    decode_producer,
    decode_quotas,
    quota_filter,
    quota_row,
    resource_name,
)
from broker.client.admin_types import (
    ALL_BROKERS,
    HIGH_WATERMARK,
    GroupDescription,
    GroupListing,
    LogDir,
    MemberDescription,
    NewTopic,
    PartitionReassignment,
    ProducerState,
    QuorumLeader,
    ReplicaSize,
    TransactionDescription,
    TransactionListing,
)
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster_metadata import CoordinatorKind, Node, TopicMetadata
from broker.client.committed_offsets import GroupOffsets
from broker.client.coordinator import Coordinator
from broker.client.delegation_tokens import DelegationTokenAdmin
from broker.client.denials import refusal
from broker.client.group_descriptions import ShareOffset, describe_group, members_of_groups, share_group_offsets
from broker.client.leader_requests import ask_leaders, error_of, partition_rows
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.described_config import ConfigEntry, ResourceType
from broker.protocol.messages import field, to_ms
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.quotas.quota_entity import QuotaEntity
from broker.security.acl_types import EVERY_ACL, Acl, AclFilter
from broker.security.scram import MIN_ITERATIONS, ScramMechanism

__all__ = ["Admin", "NewTopic", "ResourceType"]

_SET, _DELETE = 0, 1

_MECHANISMS = {mechanism.number: mechanism for mechanism in ScramMechanism}

_SALT_BYTES = 16
_QUORUM_TOPIC = "__cluster_metadata"


class Admin(DelegationTokenAdmin):
    """Administration of one cluster; Kafka's `Admin`, blocking. Thread-safe."""

    # --- topics ------------------------------------------------------------------------------------

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create the topics in one request. Raises the first failure; the other topics are created in any case.

        Raises BrokerError: `topic_already_exists`, `invalid_topic_exception`, `invalid_partitions`, …
        """
        body = {"topics": [creatable_topic(topic) for topic in topics], "validate_only": validate_only}
        self._change_topics(ApiKey.CREATE_TOPICS, body, "topics", "creating")

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create one topic, as `create_topics` does."""
        self.create_topics([NewTopic(name, partitions, replication, configs or {})])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete the topics. Raises BrokerError `unknown_topic_or_partition` when one does not exist."""
        names = list(names)
        rows = [{"name": name, "topic_id": None} for name in names]
        self._change_topics(ApiKey.DELETE_TOPICS, {"topics": rows, "topic_names": names}, "responses", "deleting")

    def create_partitions(self, topic: str, count: int, assignment: Sequence[Sequence[int]] | None = None) -> None:
        """Add partitions up to `count`. Raises BrokerError `invalid_partitions` when `topic` has as many already."""
        placed = None if assignment is None else [{"broker_ids": list(ids)} for ids in assignment]
        body = {"topics": [{"name": topic, "count": count, "assignments": placed}], "validate_only": False}
        self._change_topics(ApiKey.CREATE_PARTITIONS, body, "results", "adding partitions to")

    def alter_partition_reassignments(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Move the replicas of partitions to other brokers, the preferred leader first; None cancels (KIP-455).

        They are copied after that: see `list_partition_reassignments`. Raises the first failure; the others begin in
        any case. Raises BrokerError: `invalid_replica_assignment`, `no_reassignment_in_progress`, …
        """
        rows = ((tp, {"partition_index": tp.partition, "replicas": ids}) for tp, ids in targets.items())
        body = {"topics": topic_rows(rows), "timeout": self.cluster.settings.request_timeout_ms}
        api = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        answer = self._ask(api, body, partial(self._checked, api, api.name))
        self.cluster.expire()
        for tp, row in partition_rows(answer.responses).items():
            self._checked(api, f"reassigning {tp}", row)

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments that run."""
        body = {"topics": None, "timeout": self.cluster.settings.request_timeout_ms}
        api = ApiKey.LIST_PARTITION_REASSIGNMENTS
        topics = self._ask(api, body, partial(self._checked, api, api.name)).topics
        return {
            tp: PartitionReassignment(tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas))
            for tp, row in partition_rows(topics).items()
        }

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Sorted topic names; internal topics only with `internal`."""
        return sorted(topic.name for topic in self.cluster.topics().values() if internal or not topic.internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Partitions, leaders and replicas of `names` or of all topics. Raises UnknownTopic."""
        if names is None:
            return self.cluster.topics()
        wanted = list(names)
        self.cluster.include(wanted)
        self.cluster.expire()
        return {name: self.cluster.topic(name) for name in wanted}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records before an offset of each partition; HIGH_WATERMARK deletes all of them (KIP-107).

        Returns the new log start offsets. Raises UnknownTopic, and BrokerError `offset_out_of_range` or
        `policy_violation` (records of the topic must not be deleted); some partitions may be done by then.
        """

        def ask(connection: BrokerConnection, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, Any]:
            rows = ((tp, {"partition_index": tp.partition, "offset": before[tp]}) for tp in tps)
            body = {"topics": topic_rows(rows), "timeout": self.cluster.settings.request_timeout_ms}
            return partition_rows(connection.request(ApiKey.DELETE_RECORDS, body).topics)

        def what(tp: TopicPartition) -> str:
            offset = "the end" if before[tp] == HIGH_WATERMARK else f"offset {before[tp]}"
            return f"deleting the records of {tp} before {offset}"

        return ask_leaders(self.cluster, ApiKey.DELETE_RECORDS, before, ask, lambda row: int(row.low_watermark), what)

    def _change_topics(self, api: ApiKey, body: Mapping[str, Any], results: str, doing: str) -> None:
        """Ask the controller. Its rows say when it is no longer the controller; then the new one is asked.

        Topics above the quota of controller mutations are asked for again (KIP-599).
        """
        cluster = self.cluster
        left = {str(topic["name"]): topic for topic in body["topics"]}
        rows: list[Any] = []

        def ask() -> None:
            timed = {"timeout": cluster.settings.request_timeout_ms, **body, "topics": list(left.values())}
            timed["topic_names"] = list(left)
            answer = cluster.connection(cluster.controller()).request(api, timed)
            throttled = None
            for row in getattr(answer, results):
                if row.error_code is ErrorCode.not_controller:
                    raise BrokerError(row.error_code, f"{api.name} went to a broker that is not the controller")
                if row.error_code is ErrorCode.throttling_quota_exceeded:
                    throttled = error_of(cluster.settings, api, row, f"{doing} topic {str(row.name)!r}")
                else:
                    left.pop(str(row.name), None)
                    rows.append(row)
            if throttled is not None:
                raise throttled

        cluster.retrying(ask)
        cluster.expire()
        for row in rows:
            self._checked(api, f"{doing} topic {str(row.name)!r}", row, str(row.name))

    # --- settings ----------------------------------------------------------------------------------

    def describe_configs(
        self, resource: ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        """All settings, or those named `keys`, of a topic, of the broker with id `name`, or of ALL_BROKERS.

        Raises BrokerError: `unknown_topic_or_partition`, `broker_not_available`.
        """
        row = {"resource_type": int(resource), "resource_name": name, "configuration_keys": keys}
        body = {"resources": [row], "include_synonyms": True, "include_documentation": True}
        result = self._ask_about(ApiKey.DESCRIBE_CONFIGS, body, resource, name, "describing")
        return {str(entry.name): decode_config_entry(entry) for entry in result.configs}

    def describe_topic_configs(self, topics: Iterable[str], keys: Sequence[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The settings named `keys` of many topics, with one request. One that does not exist, or that this client may
        not see, is left out."""
        rows = [
            {"resource_type": int(ResourceType.TOPIC), "resource_name": name, "configuration_keys": keys}
            for name in topics
        ]
        body = {"resources": rows, "include_synonyms": False, "include_documentation": False}
        results = self._ask(ApiKey.DESCRIBE_CONFIGS, body, connect=self.cluster.any_connection).results
        return {
            str(row.resource_name): {str(entry.name): decode_config_entry(entry) for entry in row.configs}
            for row in results
            if row.error_code is ErrorCode.none
        }

    def alter_configs(
        self,
        resource: ResourceType,
        name: str,
        settings: Mapping[str, str],
        *,
        delete: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set `settings`, and reset those named in `delete` to their defaults (KIP-339).

        Raises BrokerError: `invalid_config`, `unknown_topic_or_partition`; then nothing was changed.
        """
        rows: list[dict[str, Any]] = [
            {"name": key, "config_operation": _SET, "value": value} for key, value in settings.items()
        ]
        rows += ({"name": key, "config_operation": _DELETE, "value": None} for key in delete)
        target = {"resource_type": int(resource), "resource_name": name, "configs": rows}
        body = {"resources": [target], "validate_only": validate_only}
        self._ask_about(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, resource, name, "changing")

    def _ask_about(self, api: ApiKey, body: Mapping[str, Any], resource: ResourceType, name: str, doing: str) -> Any:
        """Only the broker itself knows its settings. Every broker knows those of topics, groups and ALL_BROKERS."""
        connect: Callable[[], BrokerConnection] = self.cluster.any_connection
        if resource not in (ResourceType.TOPIC, ResourceType.GROUP) and name != ALL_BROKERS:
            if not name.isdecimal():
                raise BrokerError(ErrorCode.invalid_request, f"there is no broker {name!r}: its id is a number")
            connect = partial(self._broker, int(name))
        answer = self._ask(api, body, connect=connect)
        (result,) = answer.results if api is ApiKey.DESCRIBE_CONFIGS else answer.responses
        return self._checked(api, f"{doing} the configuration of {resource_name(resource, name)}", result, name)

    # --- groups ------------------------------------------------------------------------------------

    def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """The groups of all coordinators, sorted; with `states` or `types` (in any case) only groups in one of them
        (KIP-518, KIP-848). Brokers before Kafka 4.0 have classic groups only and name no type."""
        found = (group for groups in self.groups_by_coordinator(states=states).values() for group in groups)
        in_state, of_type = ({one.lower() for one in wanted} for wanted in (states, types))
        return sorted(
            group
            for group in found
            if (not in_state or group.state.lower() in in_state)
            and (not of_type or (group.group_type.lower() or "classic") in of_type)
        )

    def groups_by_coordinator(self, *, states: Sequence[str] = ()) -> dict[Node, list[GroupListing]]:
        """Broker → the groups that it coordinates; with `states` those in one of them, from brokers that can tell."""
        body = {"states_filter": list(states), "types_filter": ()}
        return {
            node: [
                GroupListing(
                    str(row.group_id), row.protocol_type, field(row, "group_state", ""), field(row, "group_type", "")
                )
                for row in answer.groups
            ]
            for node, answer in self._ask_all(ApiKey.LIST_GROUPS, body, "listing the groups").items()
        }

    def describe_group(self, group: str) -> GroupDescription:
        """State and members of a group of any kind. An unknown group is Dead and has no members."""
        return describe_group(self.cluster, group)

    def members_of_groups(self, node: Node, groups: Iterable[GroupListing]) -> dict[str, tuple[MemberDescription, ...]]:
        """The members of groups that this broker coordinates, for those who only watch. Refused ones are left out."""
        return members_of_groups(self.cluster, node, groups)

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. Raises BrokerError `non_empty_group`, `group_id_not_found`."""

        Coordinator(self.cluster, group).ask(
            ApiKey.DELETE_GROUPS,
            {"groups_names": [group]},
            lambda answer: [(row.error_code, "the deletion") for row in answer.results],
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All committed offsets of a group; each is the next offset to read."""
        return GroupOffsets(self.cluster, group).fetch()

    def share_group_offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """Where a share group (KIP-932) begins in its partitions, and its lag. Those that no member has read yet are
        left out."""
        return share_group_offsets(self.cluster, group)

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises BrokerError `unknown_member_id` when it has members."""
        GroupOffsets(self.cluster, group).commit(offsets)

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Delete the committed offsets of `partitions` (KIP-496); returns the error of each, None when it is done.

        The error is `group_subscribed_to_topic` when a member reads the topic. Raises BrokerError `group_id_not_found`.
        """
        body = {"topics": topic_rows((tp, {"partition_index": tp.partition}) for tp in partitions)}
        answer = Coordinator(self.cluster, group).ask(ApiKey.OFFSET_DELETE, body, "deleting the offsets")
        rows = partition_rows(answer.topics)
        settings, api = self.cluster.settings, ApiKey.OFFSET_DELETE
        return {tp: error_of(settings, api, row, f"deleting the offset of {tp}", tp.topic) for tp, row in rows.items()}

    # --- transactions ------------------------------------------------------------------------------

    def list_transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), running_longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactions of all coordinators that pass every filter. Raises ConfigError for an unknown state."""
        body = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": running_longer_than_ms,
        }
        found = []
        for node, answer in self._ask_all(ApiKey.LIST_TRANSACTIONS, body, "listing the transactions").items():
            if answer.unknown_state_filters:
                raise ConfigError(f"there is no transaction state {', '.join(answer.unknown_state_filters)}")
            found += [
                TransactionListing(str(row.transactional_id), node, int(row.producer_id), row.transaction_state)
                for row in answer.transaction_states
            ]
        return sorted(found)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """State and partitions of a transaction. Raises BrokerError `transactional_id_not_found`."""

        answer = Coordinator(self.cluster, transactional_id, CoordinatorKind.TRANSACTION).ask(
            ApiKey.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [transactional_id]},
            lambda answer: [(row.error_code, "describing the transaction") for row in answer.transaction_states],
        )
        (row,) = answer.transaction_states
        return TransactionDescription(
            transactional_id,
            self.cluster.coordinator(transactional_id, CoordinatorKind.TRANSACTION),
            row.transaction_state,
            int(row.producer_id),
            int(row.producer_epoch),
            to_ms(row.transaction_timeout),
            to_ms(row.transaction_start_time),
            tuple(sorted(TopicPartition(str(t.topic), int(index)) for t in row.topics for index in t.partitions)),
        )

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
        """The producer states that the leader of each partition keeps. Raises UnknownTopic."""

        def ask(connection: BrokerConnection, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, Any]:
            topics = topic_rows(((tp, tp.partition) for tp in tps), partitions="partition_indexes")
            return partition_rows(connection.request(ApiKey.DESCRIBE_PRODUCERS, {"topics": topics}).topics)

        def read(row: Any) -> list[ProducerState]:
            return sorted(map(decode_producer, row.active_producers))

        what = "describing the producers of {}".format
        return ask_leaders(self.cluster, ApiKey.DESCRIBE_PRODUCERS, list(partitions), ask, read, what)

    def abort_transaction(self, tp: TopicPartition, producer: ProducerState) -> None:
        """Write an abort marker to one partition without asking the coordinator: only for a hanging transaction.

        A transaction hangs when its coordinator does not know it. `producer` comes from `describe_producers`. Raises
        UnknownTopic and BrokerError: `invalid_producer_epoch`, `transaction_coordinator_fenced`.
        """
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": max(0, producer.coordinator_epoch),
            "transaction_result": False,
            "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
        }

        def ask(connection: BrokerConnection, _: object) -> Mapping[TopicPartition, Any]:
            answer = connection.request(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
            return partition_rows(topic for written in answer.markers for topic in written.topics)

        what = f"aborting the transaction of producer {producer.producer_id} in {tp}"
        ask_leaders(self.cluster, ApiKey.WRITE_TXN_MARKERS, [tp], ask, lambda row: None, lambda tp: what)

    # --- data directories --------------------------------------------------------------------------

    def describe_log_dirs(self, brokers: Iterable[int] = (), topics: Iterable[str] = ()) -> list[LogDir]:
        """The data directories of `brokers`, with the partitions of `topics` in them; empty means all.

        Raises BrokerError `broker_not_available`, UnknownTopic.
        """
        wanted = [{"topic": name, "partitions": self.cluster.partitions(name)} for name in topics] or None
        named = list(brokers)
        found = []
        for id_ in named or [node.id for node in self.cluster.brokers()]:
            try:
                found += self._describe_log_dirs_of(id_, {"topics": wanted})
            except BrokerError as error:
                if named or error.code is not ErrorCode.broker_not_available:
                    raise  # else it has left the cluster meanwhile
        return found

    def _describe_log_dirs_of(self, broker_id: int, body: dict[str, object]) -> list[LogDir]:
        answer = self._ask(ApiKey.DESCRIBE_LOG_DIRS, body, connect=partial(self._broker, broker_id))
        if field(answer, "error_code") is not None:
            self._checked(ApiKey.DESCRIBE_LOG_DIRS, f"describing the directories of broker {broker_id}", answer)
        found = []
        for row in answer.results:
            partitions = {
                tp: ReplicaSize(int(replica.partition_size), int(replica.offset_lag), bool(replica.is_future_key))
                for tp, replica in sorted(partition_rows(row.topics).items(), key=lambda item: item[0])
            }
            error = error_of(self.cluster.settings, ApiKey.DESCRIBE_LOG_DIRS, row, f"directory {row.log_dir}")
            total, usable = int(field(row, "total_bytes", -1)), int(field(row, "usable_bytes", -1))
            found.append(LogDir(broker_id, row.log_dir, error, total, usable, partitions))
        return found

    # --- controllers -------------------------------------------------------------------------------

    def quorum_leader(self) -> QuorumLeader:
        """The leader of the controllers' quorum (KIP-595). Raises UnsupportedVersion: a cluster with ZooKeeper."""
        body = {"topics": [{"topic_name": _QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]}
        checked = partial(self._checked, ApiKey.DESCRIBE_QUORUM, "describing the controllers")

        def read(answer: Any) -> Any:
            (row,) = partition_rows(checked(answer).topics, topic="topic_name").values()
            return checked(row)

        row = self._ask(ApiKey.DESCRIBE_QUORUM, body, read, self.cluster.any_connection)
        return QuorumLeader(int(row.leader_id), int(row.leader_epoch))

    # --- users -------------------------------------------------------------------------------------

    def describe_users(self) -> dict[str, dict[ScramMechanism, int]]:
        """The SCRAM credentials of each user (KIP-554): mechanism → iterations, SCRAM-SHA-256 first."""
        # None and none ask for all; Apache Kafka (3.9) never answers None without the right.
        api = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
        rows = self._checked(api, "describing the users", self._ask(api, {"users": ()})).results
        found = {row.user: {info.mechanism: info.iterations for info in row.credential_infos} for row in rows}
        return {user: {_MECHANISMS[number]: has[number] for number in sorted(has)} for user, has in found.items()}

    def set_password(
        self, user: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int = MIN_ITERATIONS
    ) -> None:
        """Set the password of a new or existing user for each mechanism. The password is salted here and never sent."""
        for mechanism in mechanisms:
            salt = secrets.token_bytes(_SALT_BYTES)
            row = {
                "name": user,
                "mechanism": mechanism.number,
                "iterations": iterations,
                "salt": salt,
                "salted_password": mechanism.salted_password(password, salt, iterations),
            }
            self._alter_user({"deletions": (), "upsertions": [row]})

    def delete_user(self, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
        """Delete the credentials of these mechanisms. Raises BrokerError `resource_not_found`."""
        for mechanism in mechanisms:
            self._alter_user({"deletions": [{"name": user, "mechanism": mechanism.number}], "upsertions": ()})

    def _alter_user(self, body: Mapping[str, Any]) -> None:
        """One change per request: Kafka with KRaft refuses two changes of one user in a request."""
        for row in self._ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results:
            self._checked(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, f"user {row.user!r}", row)

    # --- quotas ------------------------------------------------------------------------------------

    def describe_client_quotas(
        self, wanted: Mapping[str, str | None] | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of the entities that have each type in `wanted` (KIP-546): key → limit per second.

        `wanted` maps USER, CLIENT_ID and IP to a name, to DEFAULT, or to None for any. `strict`: entities that have
        other types, too, are left out.
        """
        answer = self._ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, quota_filter(wanted or {}, strict=strict))
        self._checked(ApiKey.DESCRIBE_CLIENT_QUOTAS, "describing the quotas", answer)
        return dict(map(decode_quotas, answer.entries or ()))

    def alter_client_quotas(
        self, entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity, or remove those that are None. Raises BrokerError `invalid_request`."""
        body = {"entries": [quota_row(entity, changes)], "validate_only": validate_only}
        for row in self._ask(ApiKey.ALTER_CLIENT_QUOTAS, body).entries:
            self._checked(ApiKey.ALTER_CLIENT_QUOTAS, str(entity), row)

    # --- access control lists ------------------------------------------------------------------------
    # All three ask the controller: what one of them has changed, the next one sees.

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs, in one request. Raises the first failure; the other ACLs are added in any case.

        Raises BrokerError: `security_disabled` (a broker without an authorizer), `cluster_authorization_failed`,
        `invalid_request`.
        """
        wanted = list(acls)

        def check(answer: Any) -> None:
            for acl, row in zip(wanted, answer.results, strict=True):
                self._checked(ApiKey.CREATE_ACLS, f"adding the ACL {acl}", row)

        self._ask(ApiKey.CREATE_ACLS, {"creations": [acl_row(acl) for acl in wanted]}, check)

    def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that a filter chooses, sorted; without a filter all of them.

        Raises BrokerError: `security_disabled`, `cluster_authorization_failed`.
        """
        api = ApiKey.DESCRIBE_ACLS
        answer = self._ask(api, acl_filter(wanted), partial(self._checked, api, "describing the ACLs"))
        return sorted(decode_acl(row, entry) for row in answer.resources for entry in row.acls)

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters chooses; returns them, sorted. It is no error if there are none.

        Raises the first failure; other ACLs may be deleted by then. Raises BrokerError: `security_disabled`,
        `cluster_authorization_failed`, `invalid_request`.
        """
        deleted: set[Acl] = set()

        def read(answer: Any) -> None:
            rows = [row for result in answer.filter_results for row in result.matching_acls]
            deleted.update(decode_acl(row, row) for row in rows if row.error_code is ErrorCode.none)
            for result in answer.filter_results:
                self._checked(ApiKey.DELETE_ACLS, "deleting ACLs", result)
            for row in rows:
                self._checked(ApiKey.DELETE_ACLS, f"deleting the ACL {decode_acl(row, row)}", row)

        self._ask(ApiKey.DELETE_ACLS, {"filters": [acl_filter(chosen) for chosen in filters]}, read)
        return sorted(deleted)

    # --- who is asked ------------------------------------------------------------------------------

    def _ask(
        self,
        api: ApiKey,
        body: Mapping[str, Any],
        read: Callable[[Any], Any] = lambda answer: answer,
        connect: Callable[[], BrokerConnection] | None = None,
    ) -> Any:
        """What `read` makes of an answer of the controller, or of the broker that `connect` finds.

        Finds the broker and asks again when `read` raises a retriable error, too.
        """
        connect = connect or (lambda: self.cluster.connection(self.cluster.controller()))
        return self.cluster.retrying(lambda: read(connect().request(api, body)))

    def _checked(self, api: ApiKey, what: str, row: Any, name: str = "") -> Any:
        """A row, or a whole answer. Raises its error; see `error_of`."""
        error = error_of(self.cluster.settings, api, row, what, name)
        if error is not None:
            raise error
        return row

    def _broker(self, broker_id: int) -> BrokerConnection:
        for node in self.cluster.brokers():
            if node.id == broker_id:
                return self.cluster.connection(node)
        raise BrokerError(ErrorCode.broker_not_available, f"there is no broker '{broker_id}'")

    def _ask_all(self, api: ApiKey, body: Mapping[str, Any], what: str) -> dict[Node, Any]:
        """Ask every broker, except those that leave the cluster meanwhile; `what` names the action in errors."""

        def ask(node: Node) -> Any:
            if node not in self.cluster.brokers():
                return None
            answer = self.cluster.connection(node).request(api, body)
            code = field(answer, "error_code", ErrorCode.none)
            if code is not ErrorCode.none:
                raise refusal(self.cluster.settings, api, code, f"{what} at {node}")
            return answer

        answers = {node: self.cluster.retrying(partial(ask, node)) for node in self.cluster.brokers()}
        return {node: answer for node, answer in answers.items() if answer is not None}
