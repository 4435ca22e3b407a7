"""The kinds of schema registries. One more is a file and a line here.

Each is a SchemaRegistry (schema_registry.py): it says where values have the id of their schema, and how a schema is
found and registered. `registry_of` caches them per worker process.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import RegistrySettings

_KINDS: Final = {
    "confluent": ("schema_registry", "SchemaRegistry"),
    "glue": ("glue_registry", "GlueRegistry"),
    "apicurio": ("apicurio_registry", "ApicurioRegistry"),
    "azure": ("azure_registry", "AzureRegistry"),
}
"""Type → module, imported where it is used, and class."""

_registries: tuple[int, dict[RegistrySettings, SchemaRegistry]] = (0, {})


def registry_of(settings: RegistrySettings) -> SchemaRegistry:
    """This process's client of the registry, whose cache later tasks share. A forked child gets its own. Raises
    ConfigError where its library is not installed."""
    global _registries
    if _registries[0] != os.getpid():
        _registries = (os.getpid(), {})
    registries = _registries[1]
    if settings not in registries:
        module, name = _KINDS[settings.type]
        try:
            kind = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        except ImportError as error:
            raise ConfigError(
                f"schema.registry.type={settings.type} needs the extra: pip install 'pykafka-spark[{settings.type}]' "
                f"({error})"
            ) from None
        registries[settings] = kind(settings)
    return registries[settings]
