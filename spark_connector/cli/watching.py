"""How `pykafka load --watch` loads; a value that cli/load.py hands to cli/service.py, which it imports only then."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watching"]


@dataclass(frozen=True)
class Watching:
    """`interval` in seconds; `max_loads`, `history_keep` and `metrics` as the options, None where not given."""

    interval: float
    max_loads: int | None
    history_keep: int | None
    metrics: str | None = None
