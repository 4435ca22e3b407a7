"""DescribeConfigs: the settings in force of topics and of this broker, with source, synonyms and docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.api.config_entries import ConfigEntry, ConfigSource, broker_entries, topic_entries
from broker.api.context import ApiContext
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["BROKER", "TOPIC", "handle"]

TOPIC, BROKER = 2, 4


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Describe each resource; each succeeds or fails alone."""
    return {"results": [_resource(context, asked, request.body) for asked in request.body.resources]}


def _resource(context: ApiContext, asked: Any, body: Any) -> Mapping[str, Any]:
    answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        entries = _entries(context, asked.resource_type, asked.resource_name)
    except BrokerError as error:
        return {**answer, "error_code": error.code, "error_message": error.message or None, "configs": ()}
    wanted = asked.configuration_keys
    chosen = [e for e in entries if not wanted or e.name in wanted]
    return {**answer, "error_code": ErrorCode.none, "error_message": None, "configs": _configs(chosen, asked, body)}


def _entries(context: ApiContext, kind: int, name: str) -> list[ConfigEntry]:
    if kind == TOPIC:
        topic = context.topics.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        return topic_entries(context.config, topic.config)
    if kind == BROKER:
        if name not in ("", str(context.broker_id)):
            raise BrokerError(ErrorCode.invalid_request, f"this is broker {context.broker_id}, not {name}")
        return broker_entries(context.config)
    raise BrokerError(ErrorCode.invalid_request, f"resource type {kind} is not served")


def _configs(entries: Sequence[ConfigEntry], asked: Any, body: Any) -> list[Mapping[str, Any]]:
    documented = field(body, "include_documentation", False)
    return [
        {
            "name": e.name,
            "value": e.value,
            "read_only": asked.resource_type == BROKER,
            "config_source": int(e.source),
            "is_default": e.source is ConfigSource.DEFAULT,
            "is_sensitive": False,
            "config_type": e.type,
            "documentation": e.doc if documented else None,
            "synonyms": [{"name": name, "value": value, "source": int(source)} for name, value, source in e.synonyms]
            if body.include_synonyms
            else (),
        }
        for e in entries
    ]
