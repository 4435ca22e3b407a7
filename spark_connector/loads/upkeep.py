"""What is done to a group's history besides loading: list it, rewind it, prune it, finish what was killed.

Called by the console and from Python; needs neither Spark nor a broker. Every function opens the place of the loads for
itself; a group without loads there is a ConfigError that names those that have some. Raises ConfigError, LoadError,
OffsetConflict, OffsetStoreError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from broker.errors import ConfigError
from spark_connector.loads.destination import Destination
from spark_connector.loads.groups import refuse_unknown_group
from spark_connector.loads.history import History, HistoryEntry, LoadState
from spark_connector.loads.planner import next_number, open_destination
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.rewind import plan_rewind, standing

__all__ = ["history", "prune", "recover", "rewind"]


def history(target: Target) -> History:
    """Every load of the group that has left a trace; changes nothing."""
    with _open_known(target) as site:
        return site.history()


def rewind(
    target: Target,
    to_load: str,
    *,
    delete: bool = False,
    confirm: Callable[[LoadRecord], bool] = lambda plan: True,
) -> LoadRecord | None:
    """Make the group stand at the load `to_load` again; the entry of the commit log that says so.

    The output of the loads after it is moved to `_rewound/` of its directory, or deleted; files of a Delta table are
    taken out of the table, rows of a database deleted (`delete` must be said). What they had loaded is loaded again by
    the next load. `confirm` is shown the plan; None when it says no. Loads that were killed are brought to their end
    before. Raises ConfigError for a load that there is not, or loads that cannot be taken back, OffsetConflict when a
    load is quicker.
    """
    with _open_known(target) as site:
        site.committer.repair()
        number = next_number(site)
        loads = _standing_without_gap(site.history(), to_load)
        plan = plan_rewind(loads, site.log.offsets(), to_load, number=number, delete=delete)
        site.check_rewind(plan)
        if not confirm(plan):
            return None
        site.committer.commit(plan)
        return plan


def prune(target: Target, keep: int) -> list[int]:
    """Forget all but the newest `keep` entries of the commit log; gives the numbers that were forgotten.

    Data is not touched; beside files, manifests keep such loads in the list. The newest entry holds the offsets and
    always stays; loads that were killed are brought to their end before. Raises ConfigError for `keep` below 1, and for
    a Delta table.
    """
    if keep < 1:
        raise ConfigError(f"keep (--keep) must be at least 1, not {keep}: the newest entry holds the offsets")
    with _open_known(target) as site:
        site.committer.repair()
        return site.log.prune(keep)


def recover(target: Target) -> list[str]:
    """Bring loads and rewinds that were killed to their end; gives their ids."""
    with _open_known(target) as site:
        return site.committer.repair()


@contextlib.contextmanager
def _open_known(target: Target) -> Iterator[Destination]:
    """The destination of a group that has loads there."""
    with open_destination(target.check()) as site:
        refuse_unknown_group(site, target.group)
        yield site


def _standing_without_gap(known: History, to_load: str) -> list[LoadRecord]:
    """The loads that stand, in order. Refuses when it is not known what became of a number after `to_load`."""
    entries = [entry for entry in known.entries if not _is_staged(entry)]
    for entry in entries:
        if entry.state is LoadState.UNKNOWN:
            raise ConfigError(
                f"{entry.directory} is visible, but not a load of this commit log; move it away before a rewind"
            )
        if not entry.record.format and not entry.record.rewind:
            raise ConfigError(f"what load '{entry.record.load_id}' was is not known: it is pruned and has no manifest")
    records = [replace(entry.record, files=()) for entry in entries]
    gone = {entry.record.load_id for entry in entries if entry.state is LoadState.REWOUND}
    first = next((record.id.sequence for record in records if record.load_id == to_load), None)
    missing = [number for number, _ in known.forgotten if first is not None and number > first]
    if missing:
        raise ConfigError(
            f"cannot rewind to '{to_load}': what load number {missing[0]} was has been pruned from the commit log, "
            "and no manifest of it lies with the data"
        )
    return [record for record in standing(records) if record.load_id not in gone]


def _is_staged(entry: HistoryEntry) -> bool:
    return not entry.state.is_committed and entry.state not in (
        LoadState.REWIND,
        LoadState.REWOUND,
        LoadState.UNKNOWN,
    )
