"""Dead letters in a table, exactly once with the load: how a load and its bad records become one (L10).

Two tables cannot commit together. So a load commits its bad records first, and the commit of the load decides about
them: dead letters count if, and only if, their load is committed. What is left of a load that was killed in between is
settled by the group's next load, before it plans, or by a recovery or a rewind:

    dead letters of a load whose number is free        → take the number in the commit log of the loads, by an entry
                                                         that takes this load back. If its process lives, its commit is
                                                         refused from now on. Then go on as in the next line
    dead letters of a load whose number another has    → remove them
    the newest entry of the loads is a rewind          → remove the dead letters of the loads that it takes back
    otherwise                                          → nothing to do

So the next load may cover other offsets, read another schema, or find fewer records in the log than the one that was
killed: the records are loaded anew as they are now, and their dead letters are written anew.

The bad records of one group and one place of its loads have a commit log of their own in the table of dead letters:
that of the table's kind, for a group named `<group>~dead-letters~<digest of the place>`. A user's group cannot have
this name. Its entries have numbers of their own; of two loads one commits its dead letters, and the other is refused.
Only the newest entry can be of a load that is not decided, because:

- a load takes the number of its entry before it takes its own (`settle`), so an entry that another load adds later
  makes this load's entry fail;
- `settle` decides about the newest entry before it gives the number of the next.

A load without bad records adds no entry. A rewind is committed to the log of the loads first: if it is killed, dead
letters of loads that no longer stand are there until the next load, which removes them before it loads the same
records again. The other order would lose dead letters of loads that stand.

Called by load.py, write.py and maintenance.py. Raises ConfigError, LoadError and OffsetConflict.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from broker.errors import ConfigError, PykafkaError
from spark_connector.formats.bad_record_rows import BAD_RECORD_SCHEMA
from spark_connector.loads.commit import Newest
from spark_connector.loads.destination import Destination, HeldRows, LoadedDestination, NewSession
from spark_connector.loads.history import History, HistoryEntry, LoadState
from spark_connector.loads.plan import newest_record, next_number
from spark_connector.loads.record import BEGINNING, LoadError, LoadId, LoadRecord, Rewind, TableGone, UndoneLoad
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table import TableDestination
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import TaskOutput, told_by_tasks
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict

P = ParamSpec("P")
T = TypeVar("T")

_TRIES = 10
_MARK = "~dead-letters~"


def group_of(group: str, place: str) -> str:
    """The group under which the dead letters of a group's loads into `place`, a destination's URL, are committed."""
    return f"{group}{_MARK}{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def is_of_dead_letters(group: str) -> bool:
    """Whether a group in a commit log is one of `group_of`."""
    return _MARK in group


def groups_with_letters(groups: Iterable[str]) -> set[str]:
    """The groups of loads whose dead letters are committed by some of `groups`. Their rows name loads elsewhere."""
    return {group.partition(_MARK)[0] for group in groups if is_of_dead_letters(group)}


def _plainly(method: Callable[Concatenate[DeadLetters, P], T]) -> Callable[Concatenate[DeadLetters, P], T]:
    """Raise errors of the library behind the table as LoadErrors that name the table."""

    @functools.wraps(method)
    def called(self: DeadLetters, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(self, *arguments, **named)
        except PykafkaError:
            raise  # some of them are OSErrors too
        except Exception as error:
            plain = self.table.plain_error(error)
            if plain is None:
                raise
            raise plain from error

    return called


class DeadLetters:
    """The dead letters of the loads into `loads`, in `table`, which is opened for the group of `group_of`."""

    def __init__(self, loads: Destination, table: LoadedDestination, name: str, group: str) -> None:
        """`name`: the table as a user names it (`delta:URL`); `group`: that of the loads. Raises ConfigError."""
        if table.url == loads.url:
            raise ConfigError(f"dead_letters (--dead-letters): {name} is where the load itself goes; use another table")
        self.name = name
        self.table = table
        self._loads = loads
        self._group = group
        self._number = 0
        self._loads_number = 0
        self._entry_of_load: LoadRecord | None = None
        self._staged: tuple[LoadRecord, str] | None = None
        self._may_be_committed = False

    @_plainly
    def settle(self) -> None:
        """Decide about what loads and rewinds that were killed have left, and take the number of the next entry.

        A load must be planned again afterwards unless `is_settled_for`. A load that runs at the same time may be
        refused by it.
        """
        self.table.repair()
        for _ in range(_TRIES):
            number = self.table.log.newest().sequence  # before that of the loads; see the module
            newest = self._loads.log.newest()
            try:
                if not number or not self._settle_one(number, newest):
                    self._number, self._loads_number = number, newest.sequence
                    return
            except OffsetConflict:
                continue  # its load was committed just now, or another process settles
        raise LoadError(f"group '{self._group}': other loads change {self.name} faster than this one can; try again")

    def is_settled_for(self, load: LoadRecord) -> bool:
        """Whether `settle` has seen all that was committed before this load; else it must be planned again."""
        return load.id.sequence == self._loads_number + 1

    @_plainly
    def file_layout(self, load: LoadRecord, compression: str, target_file_size: int) -> FileLayout:
        """How tasks write the bad records of this load. Raises ConfigError when the table cannot take them."""
        self._entry_of_load = self._entry(self._number + 1, load.load_id)
        layout = FileLayout(
            BAD_RECORD_SCHEMA.append(pa.field(LOAD_COLUMN, pa.string())),
            TableColumns.of((), BAD_RECORD_SCHEMA),
            load.load_id,
            compression=compression,
            target_file_size=target_file_size,
        )
        return self.table.file_layout(self._entry_of_load, layout)

    @_plainly
    def stage(self) -> TaskOutput:
        """Announce the bad records of the load of `file_layout`; gives the place where tasks write them."""
        assert self._entry_of_load is not None, "file_layout comes first"
        self._staged = self._entry_of_load, self.table.stage(self._entry_of_load)
        return told_by_tasks(self.table.task_output(self._staged[1]))

    @_plainly
    def commit(self, load: LoadRecord, files: WrittenFiles = (), layout: FileLayout | None = None) -> None:
        """Commit the bad records of a load whose rows are written and counted: its own commit may follow.

        Raises OffsetConflict when another load was first.
        """
        entry, place = self._there()
        if not load.bad_rows:
            self.table.decide(entry)  # so that the table is there, and empty
            self.discard()
            return
        self.table.gather(place, files)
        self.table.seal(entry)
        self._may_be_committed = True
        self.table.commit(entry, files, layout)

    @_plainly
    def discard(self) -> None:
        """Remove the bad records that `stage` has announced, unless they may be committed: then they are settled."""
        if self._staged is not None and not self._may_be_committed:
            self.table.discard(self._staged[0].load_id)

    @contextlib.contextmanager
    def settled_on_failure(self) -> Iterator[None]:
        """When the block, which writes and commits the load, fails: settle now what the next load would settle."""
        try:
            yield
        except Exception:
            if self._may_be_committed:
                with contextlib.suppress(Exception):  # the failure of the load is what is told
                    self.settle()
            raise

    @_plainly
    def check_rewind(self, rewind: LoadRecord) -> None:
        """Raise ConfigError when the dead letters of the loads that `rewind` names cannot be removed."""
        if rewind.rewind is not None and self.table.log.newest().sequence:
            undone = [load.load_id for load in rewind.rewind.undone]
            self.table.check_rewind(self._take_back(0, rewind.load_id, undone))

    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """The bad records of each of these loads, in their order. Changes nothing.

        They have the columns of dead letters, whatever columns the rows of the load have.
        """
        letters = [replace(entry, record=replace(entry.record, columns=())) for entry in entries]
        return self.table.held(letters, session)

    @_plainly
    def strays(self, known: History) -> tuple[list[str], list[str]]:
        """(problems, notes) about dead letters of loads that are not committed. Changes nothing."""
        states = {entry.record.load_id: entry.state for entry in known.entries}
        entries = {str(entry.about) for entry in self.table.log.records() if entry.rewind is None}
        stray = {load_id for load_id in entries if load_id in states and not states[load_id].is_committed}
        newest = self.table.log.record(self.table.log.newest().sequence)
        if newest is not None and newest.rewind is None and newest.about not in states:
            stray.add(str(newest.about))
        table = self.table
        if not stray or not isinstance(table, TableDestination):
            return [], []
        rows = table.rows_by_load(table.table_of(table.url), stray)
        told: tuple[list[str], list[str]] = [], []
        for load_id in sorted(stray & {str(load_id) for load_id, count in rows.items() if count}):
            state = states.get(load_id)
            waits = state is None or (state.is_staged and state is not LoadState.VOID)
            told[waits].append(
                f"{self.name} has {rows[load_id]:,} dead letters of load {load_id}, which is not committed: "
                + ("the next load decides about them" if waits else "the next load removes them")
            )
        return told

    def _there(self) -> tuple[LoadRecord, str]:
        assert self._staged is not None, "stage comes first"
        return self._staged

    def _settle_one(self, number: int, newest: Newest) -> bool:
        """Take one step, beside the entry with this number; False when all is settled. Raises OffsetConflict."""
        entry = self.table.log.record(number)
        if entry is not None and entry.rewind is None and self._is_undecided(entry, newest):
            self._refuse(entry)
            return True
        gone = self._gone(entry, newest)
        if gone is not None:
            about, load_ids = gone
            self.table.commit(self._take_back(number + 1, about, load_ids))
        return gone is not None

    def _is_undecided(self, entry: LoadRecord, newest: Newest) -> bool:
        """Whether the load of this entry may still be committed. Raises ConfigError if it was for another table."""
        number = _load_of(entry).sequence
        if number > newest.sequence + 1:
            raise ConfigError(
                f"{self.name} holds dead letters of load {entry.about}, but {self._loads.url} has only "
                f"{newest.sequence or 'no'} loads of group '{self._group}': it was made anew or set back since. Use "
                "another table of dead letters (dead_letters)"
            )
        return number == newest.sequence + 1

    def _gone(self, entry: LoadRecord | None, newest: Newest) -> tuple[str, Sequence[str]] | None:
        """(what has decided about them, loads whose dead letters must be removed); None when all are in order."""
        record = self._loads.log.record(newest.sequence) if newest.sequence else None
        if record is not None and record.rewind is not None and (entry is None or entry.about != record.load_id):
            return record.load_id, [undone.load_id for undone in record.rewind.undone]
        if entry is None or entry.rewind is not None or entry.about == newest.load_id:
            return None
        load = _load_of(entry)
        winner = record if load.sequence == newest.sequence else self._loads.log.record(load.sequence)
        if winner is None or winner.load_id == entry.about:
            return None  # it is committed; or the log has forgotten it, and later loads have decided about it
        return winner.load_id, [str(load)]

    def _refuse(self, entry: LoadRecord) -> None:
        """Take the number of the load of this entry, so that it can never be committed. Raises OffsetConflict."""
        fence = refusal_of(_load_of(entry), self._loads, (self.name,))
        if fence.id.sequence != _load_of(entry).sequence:
            return  # somebody else has it now
        try:
            self._loads.commit(fence)
        except TableGone as error:
            raise ConfigError(
                f"{self.name} holds dead letters of load {entry.about}, but {error}, which would decide about them: "
                "use another table of dead letters (dead_letters)"
            ) from error

    def _take_back(self, number: int, about: str, load_ids: Iterable[str]) -> LoadRecord:
        undone = tuple(UndoneLoad(load_id, self.table.url) for load_id in load_ids)
        return replace(self._entry(number, about), rewind=Rewind(about, undone, False))

    def _entry(self, number: int, about: str) -> LoadRecord:
        group = group_of(self._group, self._loads.url)
        return LoadRecord(
            load_id=str(LoadId(group, number, secrets.token_hex(4))),
            output=self.table.url,
            format=self.name.partition(":")[0],
            offsets=self.table.log.kind,
            created_ms=time.time_ns() // 1_000_000,
            ranges=(),
            about=about,
        )


def refusal_of(load: LoadId, loads: Destination, dead_letters: tuple[str, ...]) -> LoadRecord:
    """The entry with the next number that takes back `load`, which is not committed. Offsets stay as they are."""
    number = next_number(loads)
    known = newest_record(loads.log)
    before = known or LoadRecord.unknown(str(load), loads.url, loads.log.kind)
    stands_at = BEGINNING if known is None else known.rewind.to_load if known.rewind else known.load_id
    return replace(
        before,
        load_id=str(LoadId(load.group, number, secrets.token_hex(4))),
        output=loads.url,
        created_ms=time.time_ns() // 1_000_000,
        ranges=(),
        files=(),
        rerun_of=None,
        rewind=Rewind(stands_at, (UndoneLoad(str(load), loads.url),), False),
        dead_letters=dead_letters,
    )


def _load_of(entry: LoadRecord) -> LoadId:
    return LoadId.of(str(entry.about))
