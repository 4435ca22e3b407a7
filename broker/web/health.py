"""Whether the broker can serve, for /healthz and the metrics.

Checks what a load balancer or an orchestrator should act on: ZooKeeper answers (or the metadata file of a standalone
broker can be written), and so can the data directories. The response itself shows that the event loop runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.log.manager import LogManager
from broker.verdict import Verdict

OK = str(Verdict.OK)
_ZOOKEEPER = ("zookeeper", "no ZooKeeper server answers (zookeeper.connect)")
_LOCAL_STORE = ("metadata", "the metadata file cannot be written; the log says why")


class Health:
    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        zookeeper_connected: Callable[[], bool],
        *,
        standalone: bool = False,
        archive: Callable[[], str] | None = None,
    ) -> None:
        """`archive` tells why the archive does not go on, and nothing while it does; None without an archive."""
        self._broker_id = broker_id
        self._logs = logs
        self.zookeeper_connected = zookeeper_connected
        self._store = _LOCAL_STORE if standalone else _ZOOKEEPER
        self._archive = archive

    def report(self) -> tuple[bool, dict[str, Any]]:
        """Whether all checks pass, and the JSON of the response. Blocks: it looks at the directories.

        A check that cannot look is unknown, which is not well.

        An archive that does not go on is told, and no reason to restart a broker: it serves, and keeps all records.
        """
        name, problem = self._store
        checks = {
            name: _looked_at(lambda: "" if self.zookeeper_connected() else problem),
            "log.dirs": _looked_at(
                lambda: "; ".join([*self.directory_problems().values(), *self._offline_partitions()])
            ),
        }
        well = all(result == OK for result in checks.values())
        wrong = any(result != OK and not result.startswith(Verdict.UNKNOWN) for result in checks.values())
        status = OK if well else "failing" if wrong else str(Verdict.UNKNOWN)
        if self._archive is not None:
            checks["archive"] = _looked_at(self._archive)
            if well and checks["archive"] != OK:
                status = "degraded"
        return well, {"status": status, "broker.id": self._broker_id, "checks": checks}

    def _offline_partitions(self) -> list[str]:
        offline = self._logs.offline
        if len(offline) < 2:
            return list(offline.values())
        return [f"{len(offline)} partitions are offline, the first: {next(iter(offline.values()))}"]

    def directory_problems(self) -> dict[Path, str]:
        """Data directories that cannot be written, with the reason."""
        problems = self._logs.failures
        problems |= {
            directory: f"{directory} cannot be written"
            for directory in self._logs.directories
            if directory not in problems and not os.access(directory, os.W_OK | os.X_OK)
        }
        problems |= self._logs.disk_failures()
        for log in tuple(self._logs.logs().values()):
            if log.failure:
                problems.setdefault(log.directory.parent, log.failure)
        return problems


def _looked_at(look: Callable[[], str]) -> str:
    """What a check says; OK where that is nothing."""
    try:
        return look() or OK
    except OSError as error:
        return f"{Verdict.UNKNOWN}: it could not be looked at: {error}"
