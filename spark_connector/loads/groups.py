"""Which groups have loads in one destination: told to those who name one that is not among them.

A misspelt group is a new one, whose first load would take everything once more, beside the rows of the group that was
meant. loads/planner.py refuses that; loads/upkeep.py and loads/verify.py, which only look, name the groups there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from broker.errors import ConfigError
from spark_connector.loads.destination import Destination
from spark_connector.loads.record import LoadRecord

__all__ = ["refuse_doubling_group", "refuse_unknown_group", "topics_by_group"]

_MANY = 8


def topics_by_group(loads: Iterable[LoadRecord]) -> dict[str, set[str]]:
    """Group → the topics it has loaded, by records that stand; the newest alone knows all, where brokers give ids."""
    found: dict[str, set[str]] = {}
    for load in loads:
        found.setdefault(load.id.group, set()).update(load.topic_ids, (range.topic for range in load.ranges))
    return found


def refuse_doubling_group(site: Destination, group: str, topics: Collection[str]) -> None:
    """Raise ConfigError when other groups have loads of the `topics` in the destination: of a group that has none."""
    others = {name: known & {*topics} for name, known in site.topics_by_group().items() if name != group}
    doubled = sorted(name for name, both in others.items() if both)
    if doubled:
        both = sorted(set().union(*(others[name] for name in doubled)))
        raise ConfigError(
            f"group '{group}' has loaded nothing yet, and {site.url} holds loads of {_some(both)} by "
            f"{_groups(doubled)}: what they have loaded would be there twice.{_meant(group, doubled)} To load it again "
            "beside theirs say so: new_group (--new-group)"
        )


def refuse_unknown_group(site: Destination, group: str) -> None:
    """Raise ConfigError for a group that has left no trace in the destination."""
    if site.log.newest().sequence or site.history().entries:
        return
    groups = sorted(site.topics_by_group())
    if not groups:
        raise ConfigError(f"{site.url} holds no loads, of group '{group}' or any other")
    raise ConfigError(
        f"{site.url} holds no loads of group '{group}', only of {_groups(groups)}.{_meant(group, groups)}"
    )


def _groups(names: Collection[str]) -> str:
    return f"{'group' if len(names) == 1 else 'groups'} {_some([repr(name) for name in names])}"


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"


def _meant(group: str, groups: Collection[str]) -> str:
    close = difflib.get_close_matches(group, groups, n=1)
    return f" Did you mean group '{close[0]}'?" if close else ""
