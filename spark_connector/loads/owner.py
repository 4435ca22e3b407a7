"""Who is at work on a staged load, so that a list of loads can tell one that runs from one that was killed.

The intent of a load (loads/commit.py) names the process that wrote it; loads/history.py asks whether that process is
still there. Only for people to read: no rule of the commit protocol depends on it, so a wrong guess costs nothing.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_connector.loads.record import LoadRecord

__all__ = ["Owner", "intent_of", "owner_of"]


@dataclass(frozen=True)
class Owner:
    """A process. `started`: its start in clock ticks after boot, where the kernel tells, so that a pid used again by
    another process is not taken for it."""

    host: str
    pid: int
    started: int | None = None

    @classmethod
    def this_process(cls) -> Owner:
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()))

    def is_alive(self) -> bool | None:
        """None when it runs, or ran, on another host."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's process is a process
        return self.started is None or _started(self.pid) == self.started


def intent_of(record: LoadRecord) -> bytes:
    """The intent of a load: its record, and this process as its owner."""
    return json.dumps({**record.to_json(), "owner": asdict(Owner.this_process())}, indent=1).encode()


def owner_of(intent: bytes) -> Owner | None:
    """The owner that an intent names; None when it was written before intents did."""
    try:
        document: Any = json.loads(intent)["owner"]
        return Owner(str(document["host"]), int(document["pid"]), document["started"])
    except (ValueError, KeyError, TypeError):
        return None


def _started(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; the name before it, in parentheses, may hold anything."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(status.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
