"""DescribeConfigs: the settings in force of topics, of this broker and of all brokers (name ""), and log levels.

Each has a source, type, synonyms and documentation (KIP-133, KIP-226, KIP-412, KIP-569). Passwords are never shown.
What a broker knows of the archives it fills is asked for like a setting; it is in no list of all settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.api.archive_status import archive_status
from broker.api.config_resources import check_resource, resource
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError
from broker.protocol.described_config import ARCHIVE_STATUS, ConfigEntry, ConfigSource, ResourceType
from broker.protocol.messages import field
from broker.protocol.permissions import DESCRIBE_CONFIGS_CLUSTER, DESCRIBE_CONFIGS_GROUP, DESCRIBE_CONFIGS_TOPIC

_NEEDS = (DESCRIBE_CONFIGS_CLUSTER, DESCRIBE_CONFIGS_GROUP, DESCRIBE_CONFIGS_TOPIC)


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each resource succeeds or fails alone."""
    return {"results": [_resource(context, client, asked, request.body) for asked in request.body.resources]}


def _resource(context: ApiContext, client: Client, asked: Any, body: Any) -> Fields:
    answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        check_resource(context, client, _NEEDS, asked)
        entries = resource(context, asked.resource_type, asked.resource_name).describe()
    except BrokerError as error:
        return {**answer, **outcome(error), "configs": ()}
    wanted = asked.configuration_keys
    chosen = [e for e in entries if not wanted or e.name in wanted]
    if wanted and ARCHIVE_STATUS in wanted and asked.resource_type == ResourceType.BROKER and asked.resource_name:
        chosen.append(archive_status(context, client))
    return {**answer, **outcome(), "configs": _configs(chosen, body)}


def _configs(entries: Sequence[ConfigEntry], body: Any) -> list[Fields]:
    documented = field(body, "include_documentation", False)
    return [
        {
            "name": e.name,
            "value": e.value,
            "read_only": e.read_only,
            "config_source": int(e.source),
            "is_default": e.source is ConfigSource.DEFAULT_CONFIG,
            "is_sensitive": e.sensitive,
            "config_type": e.type,
            "documentation": e.documentation if documented else None,
            "synonyms": [one._asdict() for one in e.synonyms] if field(body, "include_synonyms", False) else (),
        }
        for e in entries
    ]
