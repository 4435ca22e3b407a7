"""Requests and responses that kio lacks, because Apache Kafka 4 dropped them (KIP-896). Old clients still send them.

Called by entities.py. An older version is kio's lowest one without the fields that came later, and with those that
went. Source of the fields: the message schemas of Kafka 3.9.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.index import load_payload_module
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from broker.protocol.api_keys import ApiKey

_KIO_LOWEST: Final[Mapping[int, int]] = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
}
"""The APIs of which all older versions are known here, down to 0."""


class _Added(NamedTuple):
    """A field of an older version: its type, its name in Kafka's schema types, and the field that it stands before."""

    type: Any
    kafka_type: str
    before: str = ""


_Change = Mapping[str, _Added | None]
"""Path of a field, with dots → the field in the older version; None where that has no such field."""

_REQUEST, _RESPONSE = EntityType.request, EntityType.response
_FETCHED: Final[_Change] = {
    "responses.partitions.last_stable_offset": None,
    "responses.partitions.aborted_transactions": None,
}
_WITHOUT_TIME: Final[_Change] = {"responses.partition_responses.log_append_time": None}
_CHANGES: Final[Mapping[tuple[int, int, EntityType], _Change]] = {
    **{(ApiKey.PRODUCE, version, _REQUEST): {"transactional_id": None} for version in range(3)},
    (ApiKey.PRODUCE, 1, _RESPONSE): _WITHOUT_TIME,
    (ApiKey.PRODUCE, 0, _RESPONSE): {"throttle_time": None, **_WITHOUT_TIME},
    (ApiKey.FETCH, 3, _REQUEST): {"isolation_level": None},
    **{(ApiKey.FETCH, version, _REQUEST): {"isolation_level": None, "max_bytes": None} for version in range(3)},
    **{(ApiKey.FETCH, version, _RESPONSE): _FETCHED for version in (1, 2, 3)},
    (ApiKey.FETCH, 0, _RESPONSE): {"throttle_time": None, **_FETCHED},
    (ApiKey.LIST_OFFSETS, 0, _REQUEST): {"topics.partitions.max_num_offsets": _Added(i32, "int32")},
    (ApiKey.LIST_OFFSETS, 0, _RESPONSE): {
        "topics.partitions.timestamp": None,
        "topics.partitions.offset": None,
        "topics.partitions.old_style_offsets": _Added(tuple[i64, ...], "int64"),
    },
    (ApiKey.OFFSET_COMMIT, 1, _REQUEST): {
        "retention_time": None,
        "topics.partitions.commit_timestamp": _Added(i64, "int64", before="committed_metadata"),
    },
    (ApiKey.OFFSET_COMMIT, 0, _REQUEST): {
        "retention_time": None,
        "generation_id_or_member_epoch": None,
        "member_id": None,
    },
    (ApiKey.CREATE_TOPICS, 0, _REQUEST): {"validate_only": None},
    (ApiKey.CREATE_TOPICS, 1, _RESPONSE): {"throttle_time": None},
    (ApiKey.CREATE_TOPICS, 0, _RESPONSE): {"throttle_time": None, "topics.error_message": None},
    (ApiKey.DELETE_TOPICS, 0, _RESPONSE): {"throttle_time": None},
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 1, _REQUEST): {"topics.partitions.current_leader_epoch": None},
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, _REQUEST): {"topics.partitions.current_leader_epoch": None},
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 1, _RESPONSE): {"throttle_time": None},
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, _RESPONSE): {"throttle_time": None, "topics.partitions.leader_epoch": None},
    (ApiKey.DESCRIBE_ACLS, 0, _REQUEST): {"pattern_type_filter": None},
    (ApiKey.DESCRIBE_ACLS, 0, _RESPONSE): {"resources.pattern_type": None},
    (ApiKey.CREATE_ACLS, 0, _REQUEST): {"creations.resource_pattern_type": None},
    (ApiKey.DELETE_ACLS, 0, _REQUEST): {"filters.pattern_type_filter": None},
    (ApiKey.DELETE_ACLS, 0, _RESPONSE): {"filter_results.matching_acls.pattern_type": None},
    (ApiKey.DESCRIBE_CONFIGS, 0, _REQUEST): {"include_synonyms": None},
    (ApiKey.DESCRIBE_CONFIGS, 0, _RESPONSE): {
        "results.configs.config_source": None,
        "results.configs.synonyms": None,
        "results.configs.is_default": _Added(bool, "bool", before="is_sensitive"),
    },
}
"""How an older version differs from kio's lowest; one that is not named has the same fields."""


def payload_class(api: int, version: int, kind: EntityType) -> Any:
    """The class of a request or response, kio's or an older one. Raises what kio raises for one that nobody knows."""
    lowest = _KIO_LOWEST.get(api, 0)
    if 0 <= version < lowest:
        changes = _CHANGES.get((api, version, kind), {})
        return _older(_of_kio(api, lowest, kind), version, tuple(changes.items()))
    return _of_kio(api, version, kind)


def _of_kio(api: int, version: int, kind: EntityType) -> Any:
    module = load_payload_module(api, version, kind)  # type: ignore[arg-type]
    return next(c for c in vars(module).values() if getattr(c, "__type__", None) is kind)


@functools.cache
def _older(entity: Any, version: int, changes: tuple[tuple[str, _Added | None], ...]) -> Any:
    """`entity` with other fields; what it holds has other fields, too, where a path leads there."""
    fields = {field.name: (field.type, _copy_of(field)) for field in dataclasses.fields(entity)}
    below: dict[str, list[tuple[str, _Added | None]]] = {}
    for path, added in changes:
        name, _, rest = path.partition(".")
        if rest:
            below.setdefault(name, []).append((rest, added))
        elif added is None:
            del fields[name]
        else:
            fields = _inserted(fields, name, added)
    for name, inner in below.items():
        element = typing.get_args(fields[name][0])[0]
        fields[name] = (tuple[_older(element, version, tuple(inner)), ...], fields[name][1])  # type: ignore[misc]
    names = ("__type__", "__flexible__", "__api_key__", "__header_schema__")
    known = {name: getattr(entity, name) for name in names} | {"__version__": i16(version)}
    rows = [(name, of, field) for name, (of, field) in fields.items()]
    return dataclasses.make_dataclass(entity.__name__, rows, namespace=known, frozen=True, slots=True, kw_only=True)


def _inserted(fields: dict[str, tuple[Any, Any]], name: str, added: _Added) -> dict[str, tuple[Any, Any]]:
    new = (added.type, dataclasses.field(metadata={"kafka_type": added.kafka_type}))
    placed: dict[str, tuple[Any, Any]] = {}
    for other, row in fields.items():
        if other == added.before:
            placed[name] = new
        placed[other] = row
    return placed if added.before else {**placed, name: new}


def _copy_of(field: dataclasses.Field[Any]) -> Any:
    given = {} if field.default is dataclasses.MISSING else {"default": field.default}
    return dataclasses.field(metadata=field.metadata, **given)
