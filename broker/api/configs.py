"""The settings of topics, groups, brokers and a broker's loggers: describe and alter them, list what has any.

config_resources.py knows the resources; each succeeds or fails alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.api.config_resources import Changes, check_resource, resource
from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.archive_status import encode_statuses
from broker.protocol.described_config import ARCHIVE_STATUS, ConfigEntry, ConfigSource, ResourceType
from broker.protocol.messages import field
from broker.protocol.permissions import (
    ALTER_CONFIGS_CLUSTER,
    ALTER_CONFIGS_GROUP,
    ALTER_CONFIGS_TOPIC,
    DESCRIBE_CONFIGS_CLUSTER,
    DESCRIBE_CONFIGS_GROUP,
    DESCRIBE_CONFIGS_TOPIC,
    INCREMENTAL_ALTER_CLUSTER,
    INCREMENTAL_ALTER_GROUP,
    INCREMENTAL_ALTER_TOPIC,
    LIST_CONFIG_RESOURCES,
    LIST_OFFSETS_TOPIC,
)
from broker.settings import Setting

_DESCRIBE_NEEDS = (DESCRIBE_CONFIGS_CLUSTER, DESCRIBE_CONFIGS_GROUP, DESCRIBE_CONFIGS_TOPIC)


@serves(ApiKey.DESCRIBE_CONFIGS, 0, 4)
def describe_configs(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeConfigs: the settings in force of topics, of this broker and of all brokers (name ""), and log levels.

    Each has a source, type, synonyms and documentation (KIP-133, KIP-226, KIP-412, KIP-569). Passwords are never shown.
    What a broker knows of the archives it fills is asked for like a setting; it is in no list of all settings.
    """
    return {"results": [_described(context, client, asked, request.body) for asked in request.body.resources]}


def _described(context: ApiContext, client: Client, asked: Any, body: Any) -> Fields:
    answer = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        check_resource(context, client, _DESCRIBE_NEEDS, asked)
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


def archive_status(context: ApiContext, client: Client) -> ConfigEntry:
    """The entry ARCHIVE_STATUS, of the topics that the client may describe: an empty list without an archive.

    Kafka has no request for it; broker/client/archive_status.py asks for it.
    """
    statuses = [] if context.archive is None else context.archive.statuses()
    allowed = [one for one in statuses if context.allows(client, LIST_OFFSETS_TOPIC, one.tp.topic, asked=False)]
    return ConfigEntry(ARCHIVE_STATUS, encode_statuses(allowed), ConfigSource.DEFAULT_CONFIG, read_only=True)


_ALTER_NEEDS = {
    ApiKey.ALTER_CONFIGS: (ALTER_CONFIGS_CLUSTER, ALTER_CONFIGS_GROUP, ALTER_CONFIGS_TOPIC),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (INCREMENTAL_ALTER_CLUSTER, INCREMENTAL_ALTER_GROUP, INCREMENTAL_ALTER_TOPIC),
}

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

ChangesOf = Callable[[Sequence[Any], Mapping[str, str], Mapping[str, Setting]], Changes]


@serves(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, changes_metadata=True)
async def incremental_alter_configs(context: ApiContext, request: Request, client: Client) -> Fields:
    """IncrementalAlterConfigs (KIP-339): set or delete settings, or append to and subtract from those that are lists.

    It alters topics, groups, brokers (only settings that may change at run time, KIP-226) and a broker's loggers. All
    changes but those of loggers are kept in ZooKeeper. They take effect at once. Errors are those of Kafka's
    `ConfigAdminManager`.
    """
    return await alter_each(context, request, client, incremental_changes)


async def alter_each(context: ApiContext, request: Request, client: Client, changes_of: ChangesOf) -> Fields:
    """Apply `changes_of(requested changes, values set on the resource, its known settings)` to each resource."""
    named = Counter((asked.resource_type, asked.resource_name) for asked in request.body.resources)
    responses = []
    for asked in request.body.resources:
        told = outcome()
        try:
            check_resource(context, client, _ALTER_NEEDS[request.api], asked)
            if named[asked.resource_type, asked.resource_name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "a resource may be in the request only once")
            await _alter(context, asked, request.body.validate_only, changes_of)
        except BrokerError as error:
            told = outcome(error)
        except ConfigError as error:
            told = outcome(BrokerError(ErrorCode.invalid_config, str(error)))
        responses.append({**told, "resource_type": asked.resource_type, "resource_name": asked.resource_name})
    return {"responses": responses}


async def _alter(context: ApiContext, asked: Any, validate_only: bool, changes_of: ChangesOf) -> None:
    found = resource(context, asked.resource_type, asked.resource_name)
    if changes_of is not incremental_changes and not found.replaceable:
        raise BrokerError(ErrorCode.invalid_request, "AlterConfigs is not for loggers")
    changes = changes_of(asked.configs, found.current(), found.keys)
    await found.alter(changes, validate_only=validate_only)


def incremental_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """The new value of each setting in `asked`, or None to delete it.

    `current` has the values set on the resource, `keys` its known settings. Raises BrokerError `invalid_request` (a
    name twice, no value, an unknown operation) and ConfigError (not a list).
    """
    check_named_once(asked)
    return {change.name: _new_value(change, current.get(change.name), keys.get(change.name)) for change in asked}


def check_named_once(asked: Sequence[Any]) -> None:
    twice = [name for name, count in Counter(change.name for change in asked).items() if count > 1]
    if twice:
        raise BrokerError(ErrorCode.invalid_request, f"named more than once: {', '.join(twice)}")


def _new_value(change: Any, current: str | None, key: Setting | None) -> str | None:
    operation = change.config_operation
    if operation == DELETE:
        return None
    if operation not in (SET, APPEND, SUBTRACT):
        raise BrokerError(ErrorCode.invalid_request, f"{change.name}: there is no config operation {operation}")
    if change.value is None:
        raise BrokerError(ErrorCode.invalid_request, f"a value is needed for {change.name}")
    if operation == SET or key is None:  # an unknown setting is refused later, with all others that are unknown
        return str(change.value)
    if key.type != "list":
        raise ConfigError(f"{change.name}: only a list can be appended to or subtracted from")
    items = _items(key.format(key.default) if current is None else current)
    named = _items(change.value)
    if operation == APPEND:
        return ",".join(items + [item for item in named if item not in items])
    return ",".join(item for item in items if item not in named)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


@serves(ApiKey.ALTER_CONFIGS, 0, 2, changes_metadata=True)
async def alter_configs(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterConfigs: replace all settings of a topic or a broker, but no log levels.

    Older clients use it instead of IncrementalAlterConfigs.
    """
    return await alter_each(context, request, client, _replacing_changes)


def _replacing_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """Delete all values set on the resource, except those in `asked`. Raises BrokerError `invalid_request`."""
    check_named_once(asked)
    if nulls := [change.name for change in asked if change.value is None]:
        raise BrokerError(ErrorCode.invalid_request, f"a value is needed for {', '.join(nulls)}")
    return {**dict.fromkeys(current), **{change.name: change.value for change in asked}}


@serves(ApiKey.LIST_CONFIG_RESOURCES, 0, 1)
def list_config_resources(context: ApiContext, request: Request, client: Client) -> Fields:
    """ListConfigResources: the resources that have settings (KIP-1142), in version 0 only client metrics (KIP-714).

    Names and types. A request without types means all. There are no subscriptions to client metrics here.
    """
    if not context.allows(client, LIST_CONFIG_RESOURCES):
        return {"error_code": LIST_CONFIG_RESOURCES.code, "config_resources": ()}
    asked = field(request.body, "resource_types", (ResourceType.CLIENT_METRICS,)) or tuple(ResourceType)
    if any(kind not in tuple(ResourceType) for kind in asked):
        return {"error_code": ErrorCode.unsupported_version}
    metadata = context.topics.metadata
    brokers = [str(broker_id) for broker_id in metadata.brokers]
    names = {
        ResourceType.TOPIC: list(metadata.topics),
        ResourceType.BROKER: brokers,
        ResourceType.GROUP: list(context.group_configs.known),
        ResourceType.BROKER_LOGGER: brokers,
    }
    found = [
        {"resource_name": name, "resource_type": int(kind)}
        for kind in dict.fromkeys(asked)
        for name in names.get(kind, ())
    ]
    return {"error_code": ErrorCode.none, "config_resources": found}
