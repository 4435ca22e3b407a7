"""Which brokers a command asks first when its options do not say: the properties file, the environment, localhost.

Called by client_options.py, by completion.py, which has no more than half a line to go by, and by the commands of the
connector.
"""

from __future__ import annotations

import os
from pathlib import Path

from broker.settings import read_properties_file

__all__ = ["BOOTSTRAP_VARIABLE", "DEFAULT_BOOTSTRAP", "base_properties", "given_properties"]

BOOTSTRAP_VARIABLE = "PYKAFKA_BOOTSTRAP_SERVER"
DEFAULT_BOOTSTRAP = "localhost:9092"
_PATIENCE_MS = "3000"
"""How long no broker at all may be reached: a person waits for the error."""


def base_properties(file: Path | None) -> dict[str, str]:
    """The client's properties before any option. Raises ConfigError for a file that cannot be read."""
    return {"socket.connection.setup.timeout.ms": _PATIENCE_MS} | given_properties(file)


def given_properties(file: Path | None) -> dict[str, str]:
    """`bootstrap.servers`, and what the file says. Raises ConfigError for a file that cannot be read."""
    servers = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    return {"bootstrap.servers": servers} | (read_properties_file(file) if file else {})
