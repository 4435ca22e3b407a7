"""The options of a read of a table together with its topics (`history`), checked and typed.

They are taken out of the options of the read: what is left are options for the topics alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.errors import ConfigError
from spark_connector.offset_store.base import check_group
from spark_connector.options.option_table import OPTIONS, check_names
from spark_connector.options.option_values import OptionValues
from spark_connector.options.read_options import COLUMNS

_OWN = ("history", "catalog", "historycolumn", "historystoragesecrets", "group", "offsetstore")
_ZOOKEEPER = "offsetstore.zookeeper.connect"


@dataclass(frozen=True)
class HistoryOptions:
    """`place` is `iceberg:…`, `delta:…` or a directory; `zookeeper` is where the loads into a directory keep their
    offsets, None: in the directory. `topics` are the options that are left, names in lower case."""

    place: str = field(repr=False)
    group: str
    catalog: str | None
    column: str | None
    zookeeper: str | None
    storage_options: Mapping[str, str] = field(repr=False)
    topics: Mapping[str, str] = field(repr=False)


def parse_history(options: Mapping[str, str]) -> HistoryOptions | None:
    """None when there is no option `history`. Raises ConfigError."""
    values = OptionValues(options)
    place = values.text("history")
    if place is None:
        return None
    check_names(options)
    if not place:
        raise ConfigError("Option 'history' is empty: iceberg:NAMESPACE.TABLE, delta:URL or a directory of loads")
    group = values.text("group")
    if not group:
        raise ConfigError("Option 'history' needs option 'group': the group of the loads that fill the table")
    for name in (option.name for option in OPTIONS):
        if name.startswith(("starting", "ending")) and name in values:
            raise ConfigError(
                f"Option '{name}' cannot be used with 'history': the topics are read from the table's offsets to their "
                "ends"
            )
    catalog, is_iceberg = values.text("catalog"), place.startswith("iceberg:")
    if (catalog is not None) != is_iceberg:
        raise ConfigError(
            "Option 'history' with iceberg:NAMESPACE.TABLE needs option 'catalog', a name of pyiceberg's configuration"
            if is_iceberg
            else "Option 'catalog' goes with a 'history' of iceberg:NAMESPACE.TABLE"
        )
    return HistoryOptions(
        place=place,
        group=check_group(group),
        catalog=catalog,
        column=_column(values),
        zookeeper=_zookeeper(values),
        storage_options=_storage_options(values),
        topics=_without(options),
    )


def _without(options: Mapping[str, str]) -> dict[str, str]:
    """The options for the topics: from the beginning where the table knows nothing, and no progress is published."""
    left = {name.lower(): value for name, value in options.items()}
    left = {n: v for n, v in left.items() if n not in _OWN and not n.startswith("offsetstore.")}
    return {**left, "startingoffsets": "earliest"}


def _zookeeper(values: OptionValues) -> str | None:
    store = (values.text("offsetStore") or "files").lower()
    servers = values.text(_ZOOKEEPER)
    if store not in {"files", "zookeeper"} or (servers is not None) != (store == "zookeeper"):
        raise ConfigError(
            "With 'history', option 'offsetStore' says where loads into a directory keep their offsets: files (the "
            "default), or zookeeper with 'offsetStore.zookeeper.connect'. A stream keeps its own in its checkpoint"
        )
    if "offsetStore.path" in values:
        raise ConfigError("Option 'offsetStore.path' has no effect with 'history': the offsets are in the table")
    return servers


def _column(values: OptionValues) -> str | None:
    name = values.text("historyColumn")
    if name == "" or (name is not None and name.lower() in {column.lower() for column in COLUMNS}):
        raise ConfigError(f"Option 'historyColumn' must name a column that the read does not have, not '{name}'")
    return name


def _storage_options(values: OptionValues) -> dict[str, str]:
    text = values.text("historyStorageSecrets")
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError('Option \'historyStorageSecrets\' must be a JSON object of texts: {"name": "value"}')
    return found
