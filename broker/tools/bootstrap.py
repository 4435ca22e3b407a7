"""Which brokers a command asks first when its options do not say: the properties file, the environment, localhost.

Called by client_options.py, by completion.py, which has no more than half a line to go by, and by the commands of the
connector.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from broker.client.client_settings import ClientSettings
from broker.settings import did_you_mean, read_properties_file, settings_of

__all__ = ["BOOTSTRAP_VARIABLE", "DEFAULT_BOOTSTRAP", "base_properties", "given_properties"]

BOOTSTRAP_VARIABLE = "PYKAFKA_BOOTSTRAP_SERVER"
DEFAULT_BOOTSTRAP = "localhost:9092"
logger = logging.getLogger("pykafka.tools")

_SECURITY = ("security.", "sasl.", "ssl.")
_PATIENCE_MS = "3000"
"""How long no broker at all may be reached: a person waits for the error."""


def base_properties(file: Path | None) -> dict[str, str]:
    """The client's properties before any option. Raises ConfigError for a file that cannot be read."""
    return {"socket.connection.setup.timeout.ms": _PATIENCE_MS} | given_properties(file)


def given_properties(file: Path | None) -> dict[str, str]:
    """`bootstrap.servers`, and what the file says. Raises ConfigError for a file that cannot be read.

    The file may be one for Kafka's own tools: what only their clients have (`key.deserializer`, `metric.reporters`) is
    left out and logged, as they do with what they do not use. Not what may be a slip of the pen, or is about security.
    """
    servers = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    properties = read_properties_file(file) if file else {}
    unused = [name for name in properties if _is_only_kafkas(name)]
    if unused:
        logger.warning("pykafka: %s: these settings are not used: %s", file, ", ".join(unused))
    return {"bootstrap.servers": servers} | {name: properties[name] for name in properties if name not in unused}


def _is_only_kafkas(name: str) -> bool:
    known = settings_of(ClientSettings)
    return name not in known and not name.startswith(_SECURITY) and not did_you_mean(name, known)
