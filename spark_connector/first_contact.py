"""How long the driver waits for a cluster that does not answer: seconds at the first contact, later as long as Kafka's
clients.

An address may be mistyped, so a cluster that this Spark application never reached is given up after FIRST_CONTACT_S.
One that it did reach may be restarting: then `default.api.timeout.ms` applies (a minute). Planning runs in new
processes all the time, for each batch query and for each micro-batch that is written, so what was reached is noted in
the application's own directory, which Spark removes at its end. A user who sets `default.api.timeout.ms` is obeyed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from pathlib import Path
from typing import Final

from broker.client.client_settings import ClientSettings
from spark_connector.spark_worker import in_spark_worker

FIRST_CONTACT_S: Final = 5.0

_DEFAULT_MS: Final = ClientSettings().default_api_timeout_ms
_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
"""Spark sets it for its Python processes, to the block manager's directories."""
_reached: set[tuple[str, ...]] = set()
"""Each by its addresses and how they are spoken to: a wrong `security.protocol` is a mistake, too."""


def patience_s(settings: ClientSettings) -> float:
    """How long to try a cluster that this process has not reached yet; infinite where only the settings limit it."""
    if settings.default_api_timeout_ms != _DEFAULT_MS or _manner(settings) in _reached:
        return math.inf
    if in_spark_worker():
        note = _note(settings)
        return math.inf if note is None or note.exists() else FIRST_CONTACT_S
    return FIRST_CONTACT_S


def note_reached(settings: ClientSettings) -> None:
    """The application has reached the cluster of `settings`."""
    if _manner(settings) not in _reached:
        _reached.add(_manner(settings))
        note = _note(settings) if in_spark_worker() else None
        if note is not None:
            with contextlib.suppress(OSError):
                note.touch()


def _manner(settings: ClientSettings) -> tuple[str, ...]:
    return (settings.security_protocol, *settings.bootstrap_servers)


def _note(settings: ClientSettings) -> Path | None:
    return application_file("pykafka-reached-" + hashlib.sha256(",".join(_manner(settings)).encode()).hexdigest()[:16])


def application_file(name: str) -> Path | None:
    """A file of this Spark application on this machine, which goes with it; None outside Spark's processes."""
    first = os.environ.get(_DIRECTORIES, "").partition(",")[0] if in_spark_worker() else ""
    return Path(first, name) if first and Path(first).is_dir() else None
