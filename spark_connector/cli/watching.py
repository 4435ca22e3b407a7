"""How `pykafka load --watch` loads; a value that cli/load.py hands to cli/service.py, which it imports only then."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watching"]


@dataclass(frozen=True)
class Watching:
    """`interval` in seconds; `max_loads` and `history_keep` as the options, None where they are not given."""

    interval: float
    max_loads: int | None
    history_keep: int | None
