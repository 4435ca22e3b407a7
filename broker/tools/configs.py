"""Show and change the settings of topics and brokers at run time (kafka-configs.sh).

The options mean what they mean in Kafka's tool. A setting of a broker that is changed here is kept in ZooKeeper and
wins over the broker's file. `pykafka users` manages users. Raises BrokerError for what the broker refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.client.admin import Admin, ResourceType
from broker.client.admin_types import ALL_BROKERS
from broker.errors import ConfigError
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.settings import read_properties_file
from broker.tools.client_options import JsonOutput, admin_command, complete_entities, flag, option
from broker.tools.output import print_json, print_lines, print_view, report

app = typer.Typer(
    help="Show and change the settings of topics, brokers and groups.\n\n\b\nExamples:\n"
    "  pykafka configs describe --entity-name flights --all\n"
    "  pykafka configs alter --entity-name flights --add-config retention.ms=60000",
    no_args_is_help=True,
)

KINDS = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "broker-loggers": ResourceType.BROKER_LOGGER,
    "groups": ResourceType.GROUP,
}

EntityType = Annotated[str, option(f"One of {', '.join(KINDS)}.", "KIND", "--entity-type", "-e")]
EntityName = Annotated[
    str | None,
    option(
        "Name of the topic or group, id of the broker.",
        "NAME",
        "--entity-name",
        "-n",
        autocompletion=complete_entities,
    ),
]
EntityDefault = Annotated[bool, flag("The settings that all brokers share.", "--entity-default")]

_NOTHING_SET = " nothing was set at run time (--all shows all settings)"
_PAIR = re.compile(r"\s*(?P<key>[^=,\[\]]+)=(?:\[(?P<list>[^\]]*)\]|(?P<value>(?!\[)[^,]*))\s*(?:,|$)")


def _is_set(kind: ResourceType, entry: ConfigEntry) -> bool:
    """Whether it was set at run time: for a topic, as in kafka-configs.sh, on the topic itself. Kafka 4.1 sets
    `min.insync.replicas` for the cluster, which all topics show."""
    return entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG if kind is ResourceType.TOPIC else entry.source.dynamic


@admin_command(app)
def describe(
    admin: Admin,
    entity_type: EntityType = "topics",
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    everything: Annotated[bool, flag("Show unchanged settings too.", "--all")] = False,
    key: Annotated[list[str] | None, option("Only this setting; may be repeated.", "NAME")] = None,
    docs: Annotated[bool, flag("Explain each setting.", "--docs")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show settings with their values and sources. Without --entity-name: of all.

    \b
    Examples:
      pykafka configs describe --entity-name flights --all
      pykafka configs describe --entity-type brokers --entity-name 0 --key log.retention.ms --docs
    """
    kind = _kind(entity_type)
    names = _names(admin, kind, entity_name, entity_default)
    found = {name: admin.describe_configs(kind, name, key or None) for name in names}
    everything = everything or bool(key)
    shown = {
        name: [entry for _, entry in sorted(entries.items()) if everything or _is_set(kind, entry)]
        for name, entries in found.items()
    }
    for name, entries in found.items():
        for unknown in set(key or ()) - entries.keys():
            raise ConfigError(f"--key {unknown}: {_named(entity_type, name)} has no such setting")
    documents = [_document(entity_type, name, entries) for name, entries in shown.items()]
    if as_json:
        print_json(documents)
        return
    for number, one in enumerate(documents):
        print_lines([""] if number else [])
        print_lines([f"{_named(entity_type, one['entityName'])}:" + ("" if one["configs"] else _NOTHING_SET)])
        rows = [{**row, "value": "(hidden)" if row["sensitive"] else row["value"]} for row in one["configs"]]
        print_view(rows, "name, value, source" + (", documentation" if docs else ""))


@admin_command(app)
def alter(
    admin: Admin,
    entity_type: EntityType = "topics",
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    add_config: Annotated[
        list[str] | None, option("Settings; brackets enclose a value with commas.", "KEY=VALUE,KEY=[A,B]")
    ] = None,
    add_config_file: Annotated[Path | None, option("Take the settings from a properties file.", "FILE")] = None,
    delete_config: Annotated[list[str] | None, option("Settings to reset to the default.", "KEY,KEY")] = None,
    validate_only: Annotated[bool, flag("Check, but change nothing.", "--validate-only")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Change settings or return them to their defaults. Other settings are not changed.

    \b
    Examples:
      pykafka configs alter --entity-name flights --add-config retention.ms=60000,cleanup.policy=[compact,delete]
      pykafka configs alter --entity-type brokers --entity-default --delete-config log.retention.ms
    """
    kind = _kind(entity_type)
    settings = (read_properties_file(add_config_file) if add_config_file else {}) | parse_settings(add_config or ())
    deleted = [key.strip() for text in delete_config or () for key in text.split(",") if key.strip()]
    if not settings and not deleted:
        raise ConfigError("nothing to alter: give --add-config, --add-config-file or --delete-config")
    if not entity_name and not entity_default:
        raise ConfigError("give --entity-name" + (" or --entity-default" if kind is ResourceType.BROKER else ""))
    (name,) = _names(admin, kind, entity_name, entity_default)
    admin.alter_configs(kind, name, settings, delete=deleted, validate_only=validate_only)
    what = _named(entity_type, name)
    report(
        as_json,
        f"The settings of {what} could be altered." if validate_only else f"Altered the settings of {what}.",
        {"entityType": entity_type, "entityName": name, "altered": not validate_only},
    )


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """`a=1,b=[x,y]` → `{"a": "1", "b": "x,y"}`. Raises ConfigError."""
    settings = {}
    for text in texts:
        position = 0
        while position < len(text):
            match = _PAIR.match(text, position)
            if match is None:
                raise ConfigError(f"--add-config {text}: expected KEY=VALUE,… with values that have commas in brackets")
            settings[match["key"].strip()] = match["value"].strip() if match["list"] is None else match["list"]
            position = match.end()
    return settings


def _kind(text: str) -> ResourceType:
    kind = KINDS.get(text) or KINDS.get(text + "s")
    if kind is None:
        hint = "; for users there is `pykafka users`" if text.startswith("user") else ""
        raise ConfigError(f"--entity-type {text}: expected one of {', '.join(KINDS)}{hint}")
    return kind


def _names(admin: Admin, kind: ResourceType, name: str | None, default: bool) -> list[str]:
    if default:
        if name is not None or kind is not ResourceType.BROKER:
            raise ConfigError("--entity-default goes with --entity-type brokers, and without --entity-name")
        return [ALL_BROKERS]
    if name is not None:
        return [name]
    if kind is ResourceType.GROUP:
        return [one.group_id for one in admin.list_groups()]
    return admin.list_topics() if kind is ResourceType.TOPIC else [str(node.id) for node in admin.cluster.brokers()]


def _named(entity_type: str, name: str) -> str:
    return f"{entity_type.removesuffix('s').replace('-', ' ')} {name}" if name else "all brokers"


def _document(entity_type: str, name: str, entries: list[ConfigEntry]) -> dict[str, Any]:
    return {
        "entityType": entity_type,
        "entityName": name,
        "configs": [
            {
                "name": one.name,
                "value": one.value,
                "source": one.source.name,
                "readOnly": one.read_only,
                "sensitive": one.sensitive,
                "documentation": one.documentation,
                "synonyms": [{**synonym._asdict(), "source": synonym.source.name} for synonym in one.synonyms],
            }
            for one in entries
        ],
    }
