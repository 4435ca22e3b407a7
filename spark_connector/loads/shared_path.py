"""Whether executors write where the driver and readers look: a local path is another place on every host.

What can be known before a load is refused here, before anything is written; what only shows afterwards is for
file_check.py. A load that the driver writes itself is refused, too: the next one may be too large for that.
"""

from __future__ import annotations

import socket

from broker.errors import ConfigError

SHARED = (
    "Loads need a place that all hosts share: an object store (s3://, gs://, abfss://), hdfs://, or a network file "
    "system that is mounted at the same path on every host"
)


def is_local(url: str) -> bool:
    """Whether this is another place on each host: a path, or a database in a file."""
    return url.startswith(("/", "file:", "sqlite"))


def is_on_other_hosts(master: str) -> bool:
    """Whether the executors of this Spark master may run on other hosts than the driver. False where nothing tells: an
    empty name."""
    return bool(master) and not master.startswith("local")


def refuse_unshared(what: str, place: str, master: str) -> None:
    """Raise ConfigError for a `place` of this host, if the executors of `master` may run on others. `what`: its role,
    in words."""
    if is_on_other_hosts(master):
        raise ConfigError(
            f"{what} {place} is a local path, and another place on each host: the driver runs on host "
            f"{socket.gethostname()}, the executors of {master} on hosts of their own. {SHARED}. If it is such a "
            "mount, say so by shared_mount=True (--shared-mount). Nothing was written"
        )
