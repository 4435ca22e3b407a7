"""The commit log of loads into a database: two tables beside the rows, written in the transaction that inserts them.

    pykafka_loads     (group_id, sequence)         one row per load: its record as JSON
    pykafka_offsets   (group_id, topic, partition) the next offset

A transaction first inserts the row of the load. Its key lets one of two rivals in; the other waits until the first ends
and is then refused. An offset is set only if it still is what the plan has found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, String, Table, Text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.commit import Newest
from spark_connector.loads.database.sql import failure, make_table
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRecord
from spark_connector.loads.table import TableLog, first_line
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.stored_json import partition, topic, whole

_METADATA = MetaData()
_LOADS = Table(
    "pykafka_loads",
    _METADATA,
    Column("group_id", String(200), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("load_id", String(255), nullable=False),
    Column("record", Text, nullable=False),
)
_READ = (_LOADS.c.group_id, _LOADS.c.sequence, _LOADS.c.record)
_OFFSETS = Table(
    "pykafka_offsets",
    _METADATA,
    Column("group_id", String(200), primary_key=True),
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
)


class DatabaseCommitLog(TableLog):
    """Loads of one group in one database."""

    def __init__(self, engine: Engine, group: str, shown: str) -> None:
        super().__init__(group)
        self._engine = engine
        self._shown = shown
        self._exists = False

    def newest(self) -> Newest:
        numbers = self.sequences()
        record = self.record(numbers[-1]) if numbers else None
        return Newest(record.id.sequence, record.load_id) if record else Newest()

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        query = sqlalchemy.select(_OFFSETS.c.topic, _OFFSETS.c.partition, _OFFSETS.c.next_offset)
        rows = self._select(query.where(_OFFSETS.c.group_id == self._group))
        where = f"the offsets of group '{self._group}' in {self._shown}"
        try:
            return {
                TopicPartition(topic(name), partition(index)): whole(offset, "next_offset")
                for name, index, offset in rows
            }
        except ValueError as error:  # a column of SQLite takes values of any type
            raise LoadError(f"{where} are not what a load has written: {error}") from error

    def record(self, sequence: int) -> LoadRecord | None:
        own = _LOADS.c.group_id == self._group, _LOADS.c.sequence == sequence
        found = self._records(sqlalchemy.select(*_READ).where(*own))
        return found[0] if found else None

    def sequences(self) -> list[int]:
        query = sqlalchemy.select(_LOADS.c.sequence).where(_LOADS.c.group_id == self._group)
        return [row[0] for row in self._select(query.order_by(_LOADS.c.sequence))]

    def records_of_all(self) -> list[LoadRecord]:
        query = sqlalchemy.select(*_READ)
        return self._records(query.order_by(_LOADS.c.group_id, _LOADS.c.sequence))

    def append(self, record: LoadRecord, insert: Callable[[Connection], None] = lambda connection: None) -> None:
        """Commit the record, its offsets and the statements of `insert` in one transaction.

        Also raises LoadInterrupted when the connection breaks and the log does not have the load.
        """
        for table in (_LOADS, _OFFSETS):
            make_table(self._engine, table)
        self._exists = True
        try:
            with self._engine.begin() as connection:
                self._take_number(connection, record)
                self._move_offsets(connection, record)
                insert(connection)
        except (OffsetConflict, SQLAlchemyError) as error:
            if self._is_ours(record):
                return
            if isinstance(error, OffsetConflict):
                raise
            if isinstance(error, IntegrityError) and self.newest().sequence >= record.id.sequence:
                raise self._conflict(record) from error
            raise failure(error, f"load {record.load_id}: {self._shown}") from error

    def prune(self, keep: int) -> list[int]:
        pruned = self.sequences()[: -max(keep, 1)]
        if pruned:
            old = (_LOADS.c.group_id == self._group, _LOADS.c.sequence <= pruned[-1])
            with self._engine.begin() as connection:
                connection.execute(_LOADS.delete().where(*old))
        return pruned

    def close(self) -> None:
        self._engine.dispose()

    def _take_number(self, connection: Connection, record: LoadRecord) -> None:
        number = record.id.sequence
        document = json.dumps(record.without_files().to_json())
        row = {"group_id": self._group, "sequence": number, "load_id": record.load_id, "record": document}
        connection.execute(_LOADS.insert(), row)
        # A process that has slept must not take a number that was pruned since: the one before it must be the newest.
        newest = sqlalchemy.select(sqlalchemy.func.max(_LOADS.c.sequence)).where(_LOADS.c.group_id == self._group)
        before = connection.execute(newest.where(_LOADS.c.sequence != number)).scalar_one()
        if (before or 0) != number - 1:
            raise self._conflict(record)

    def _move_offsets(self, connection: Connection, record: LoadRecord) -> None:
        expected = record.expected
        for tp, offset in sorted(record.committed.items()):
            if tp in expected:
                found = (*self._of(tp), _OFFSETS.c.next_offset == expected[tp])
                moved = connection.execute(_OFFSETS.update().where(*found).values(next_offset=offset)).rowcount
            else:
                row = {"group_id": self._group, "topic": tp.topic, "partition": tp.partition, "next_offset": offset}
                there = connection.execute(sqlalchemy.select(_OFFSETS.c.topic).where(*self._of(tp))).first()
                moved = 0 if there else 1
                if moved:
                    connection.execute(_OFFSETS.insert(), row)
            if moved != 1:
                raise OffsetConflict(
                    f"group '{self._group}', {tp.topic}-{tp.partition}: the offset in {self._shown} is no longer "
                    f"{expected.get(tp, 'none')}; another load or program has set it"
                )

    def _conflict(self, record: LoadRecord) -> OffsetConflict:
        return OffsetConflict(
            f"group '{self._group}': another load has committed number {record.id.sequence} to {self._shown}; "
            f"{record.load_id} is not committed"
        )

    def _is_ours(self, record: LoadRecord) -> bool:
        """Whether the load is committed: by an earlier try, or by this one, whose answer was lost."""
        try:
            return self.has(record)
        except DBAPIError as error:
            raise LoadInterrupted(
                f"load {record.load_id}: the connection to {self._shown} broke; the next load finds out whether it is "
                f"committed: {first_line(error)}"
            ) from error

    def _of(self, tp: TopicPartition) -> tuple[sqlalchemy.ColumnElement[bool], ...]:
        return _OFFSETS.c.group_id == self._group, _OFFSETS.c.topic == tp.topic, _OFFSETS.c.partition == tp.partition

    def _records(self, query: sqlalchemy.Select[Any]) -> list[LoadRecord]:
        found = []
        for group, sequence, document in self._select(query):
            where = f"load {sequence} of group '{group}' in {self._shown}"
            record = LoadRecord.from_bytes(document, where)
            record.refuse_unless(group, sequence, where)
            found.append(record)
        return found

    def _select(self, query: sqlalchemy.Select[Any]) -> Sequence[Any]:
        """The rows; none while the tables do not exist."""
        if not self._exists:
            self._exists = sqlalchemy.inspect(self._engine).has_table(_OFFSETS.name)
        if not self._exists:
            return []
        with self._engine.connect() as connection:
            return connection.execute(query).all()
