"""Exactly-once loads: what is new in topics, into files or a table, each record once, whatever is killed on the way.

    from spark_connector.load import load
    result = load(spark, bootstrap_servers="localhost:9092", topic="flights", to="/data/flights", group="flights")

A load starts where the group's last load ended, writes to a hidden place below `to`, and commits data and offsets in
one atomic step. Committed rows are in `<to>/load=<load id>/`, where any reader finds them (`spark.read.parquet(to)`).
The next load finishes a load that was killed, or removes it. Of two loads of one group at the same time one wins; the
other gets OffsetConflict. Works under Spark Connect.

With `format="delta"`, and with `iceberg:NAMESPACE.TABLE` or a database as `to`, rows and offsets are one commit of the
table. Every row names its load in the column `load`. The protocols are loads/files/directory.py,
loads/delta/delta_table.py, loads/iceberg/iceberg_table.py and loads/database/database_table.py.

With `mode="upsert"` (Delta and Iceberg) the table has one row per `key`, a list of columns, as the last record with it
says; a record without a value deletes the row. `envelope`: none (default), the value is the row, or debezium.
`order_by`: a column that orders the records of a key that is in several partitions, which is refused without it. See
loads/changes.py.

A record that cannot be decoded (`valueFormat`, `keyFormat`) fails the load, unless it is said what becomes of it: by
`dead_letters`, `max_bad` or the reader's option `mode`. `dead_letters` are such records. In a table (`delta:URL`,
`iceberg:NAMESPACE.TABLE`) each of them is exactly once, and the rows leave it out; the parse mode does not matter.
`topic:NAME` is the option `badRecordsTopic`.

The reader's option `kafka.isolation.level` is read_committed by default. Each load keeps the options that decide which
records are loaded and what they become; a later load of the group with other values is refused unless
`allow_changed_options`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from spark_connector.destinations import open_all_dead_letters, open_dead_letters, open_destination
from spark_connector.loads.addresses import hadoop_settings, storage_options_for
from spark_connector.loads.commit import publish_offsets
from spark_connector.loads.dead_letters import DeadLetters
from spark_connector.loads.destination import Destination, NewSession
from spark_connector.loads.load_loop import Phase
from spark_connector.loads.plan import finished_rerun, plan_load
from spark_connector.loads.record import LoadRecord, LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.write import Findings, write_load
from spark_connector.maintenance import recover
from spark_connector.offset_store.base import OffsetConflict

logger = logging.getLogger("pykafka.spark")

__all__ = ["LoadResult", "Phase", "load", "recover", "run_load"]


def load(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    to: str,
    group: str,
    topic: str | Sequence[str] | None = None,
    format: str | None = None,
    table: str | None = None,
    columns: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    offsets: str | None = None,
    zookeeper_connect: str | None = None,
    starting_offsets: str = "earliest",
    max_records: int | None = None,
    options: Mapping[str, str] | None = None,
    write_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    from_load: str | None = None,
    from_directory: str | None = None,
    allow_changed_options: bool = False,
    new_group: bool = False,
    publish_offsets: bool = True,
    target_file_size: int | str | None = None,
    catalog: str | None = None,
    keep_snapshots: int | None = None,
    schema_evolution: str = "none",
    dead_letters: str | None = None,
    max_bad: str | int | None = None,
    mode: str = "append",
    key: str | Sequence[str] | None = None,
    envelope: str | None = None,
    order_by: str | None = None,
    on_phase: Phase | None = None,
) -> LoadResult:
    """Load all new records and commit them; see the module.

    `topic`: one, several, or a comma-separated list; or set `subscribePattern` or `assign` in `options` instead.
    `to`: a local directory, `hdfs://…`, for delta also `s3://…`, `gs://…` and `abfs://…`, a database URL of SQLAlchemy,
    with `table` (or `…#table`), or `iceberg:NAMESPACE.TABLE`. `format`: parquet (default for a directory), json, orc,
    avro, delta, iceberg, or sql (a database).
    `columns`: the columns of the output, of those that are read: `value.*` (each field), `value.address.city`,
    `value.id as order_id`, `key`. By default all that are read.
    `partition_by`: columns of the output, transforms (`day(at)`, `bucket(16, customer)`, `truncate(4, code)`; also
    year, month, hour), or date and hour of the timestamp in UTC, as directories. `sort_by`: what sorts each file.
    `group` names the sequence of loads. `offsets`: where its offsets are kept: `files` (default; in `<to>/_offsets`),
    `zookeeper` (`zookeeper_connect`), or `table`, for tables the only one. A group's first load is refused where other
    groups have loaded the same topics, unless `new_group`.
    `starting_offsets`: where a new partition begins, earliest or JSON. `max_records`: at most so many offsets.
    `publish_offsets`: also commit them to the brokers' group `group`, for lag tools; a failure does not fail the load.
    `mode`: append, or upsert, with `key`, `envelope` and `order_by`; see the module.
    `options`: the reader's (`kafka.*`, `valueFormat`, `endingTimestamp`, …); see the module.
    `write_options`: the output format's (`compression`; for sql `text`: columns of bytes that are UTF-8).
    `target_file_size`: bytes, or a text such as 128MB (default), at which a task begins another file.
    `catalog`: for Iceberg, the name of a catalog of pyiceberg's configuration (`.pyiceberg.yaml`); each commit lets the
    oldest snapshots beyond `keep_snapshots` (100) expire.
    `schema_evolution`: what the load may change in a table of delta or iceberg: none, add (new columns) or add,widen
    (also types that grow).
    `storage_options`: of an object store (`key`, `secret`, `endpoint_url`, …; broker/storage/object_stores.py), or for
    `hdfs://` Hadoop settings, by default those of the session.
    `from_load`: load again, into an empty `to`, all records from that load up to the group's offsets, which do not
    change; `from_directory`: the directory of that load (offsets=files only).
    `dead_letters`: where records go that cannot be decoded; see the module. `max_bad`: a load with more of them fails
    and leaves nothing behind: a number, or a share of the records that it reads (`0.1%`).

    Raises ConfigError, OffsetConflict, DataLoss, LoadError, and the client's PykafkaErrors.
    """
    hadoop = hadoop_settings(spark.conf.getAll) if storage_options is None and to.startswith("hdfs://") else {}
    storage_options = storage_options_for(to, storage_options or {}, hadoop)
    request = LoadRequest.build(
        Target(to, group, offsets, zookeeper_connect, storage_options, format, table, catalog, keep_snapshots),
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        starting_offsets=starting_offsets,
        max_records=max_records,
        options=options,
        write_options=write_options or {},
        from_load=from_load,
        from_directory=from_directory,
        columns=columns,
        partition_by=partition_by,
        sort_by=sort_by,
        allow_changed_options=allow_changed_options,
        new_group=new_group,
        publish_offsets=publish_offsets,
        target_file_size=target_file_size,
        schema_evolution=schema_evolution,
        dead_letters=dead_letters,
        max_bad=max_bad,
        mode=mode,
        key=key,
        envelope=envelope,
        order_by=order_by,
    )
    return run_load(_in_zone_of(spark, request), lambda: spark, on_phase or (lambda phase, record: None))


def _in_zone_of(spark: SparkSession, request: LoadRequest) -> LoadRequest:
    """With times in text as the session shows them, as Spark's own writers have them."""
    return replace(request, time_zone=str(spark.conf.get("spark.sql.session.timeZone")))


def run_load(request: LoadRequest, session: NewSession, on_phase: Phase) -> LoadResult:
    """`load` with its arguments checked; `session` is called only when there is something to write."""
    try:
        return _run_load(request, session, on_phase)
    except OffsetConflict as error:
        raise OffsetConflict(
            f"{error}. Nothing is lost, and nothing is there twice: run it again. If this happens often, two processes "
            f"load for group '{request.target.group}': stop one of them"
        ) from error


def _run_load(request: LoadRequest, session: NewSession, on_phase: Phase) -> LoadResult:
    with contextlib.ExitStack() as opened:
        destination = opened.enter_context(open_destination(request.target))
        on_phase("repair", None)
        recovered = tuple(destination.repair())
        on_phase("plan", None)
        done = finished_rerun(request, destination) if request.from_load else None
        if done is not None:
            return _result(request, destination, done, tuple(id for id in recovered if id != done.load_id))
        record, letters = _planned(request, destination, opened)
        if record is None:
            publish_offsets(request, destination, idle=not recovered)
            return _result(request, destination, None, recovered)
        with letters.settled_on_failure() if letters is not None else contextlib.nullcontext():
            begins = functools.partial(on_phase, "write", record)
            sealed, files, found = write_load(request, destination, record, session, letters, begins)
            on_phase("commit", sealed)
            destination.commit(sealed, files)
        publish_offsets(request, destination)
        on_phase("done", sealed)
        _tell(found, sealed)
        return replace(_result(request, destination, sealed, recovered), **vars(found))


def _tell(found: Findings, record: LoadRecord) -> None:
    """Log a warning for fields that no record has."""
    if found.absent_fields:
        logger.warning(
            "Load %s: no record has %s, so it is NULL in every row: check the names in the schema",
            record.load_id,
            " or ".join(found.absent_fields),
        )


def _planned(
    request: LoadRequest, destination: Destination, opened: contextlib.ExitStack
) -> tuple[LoadRecord | None, DeadLetters | None]:
    """The load to do now, when what killed loads left in tables of dead letters is settled; and its own table."""
    record = _plan(request, destination)
    if record is None or not (request.dead_letter_table or record.dead_letters):
        return record, None
    own = None
    if request.dead_letter_table is not None:
        own = opened.enter_context(open_dead_letters(request.dead_letter_table, request.target, destination))
    others = [name for name in record.dead_letters if own is None or name != own.name]
    tables = open_all_dead_letters(others, request.target, destination, opened) + ([own] if own is not None else [])
    while record is not None:
        for table in tables:
            table.settle()
        if all(table.is_settled_for(record) for table in tables):
            return replace(record, dead_letters=(own.name,) if own is not None else ()), own
        record = _plan(request, destination)
    return None, None


def _plan(request: LoadRequest, destination: Destination) -> LoadRecord | None:
    if request.from_directory is None or request.target.offsets != "files":
        return plan_load(request, destination)
    # The load to begin with is in the commit log of another directory.
    with open_destination(replace(request.target, to=request.from_directory)) as earlier:
        return plan_load(request, destination, earlier.log)


def _result(
    request: LoadRequest, destination: Destination, record: LoadRecord | None, recovered: tuple[str, ...]
) -> LoadResult:
    return LoadResult(
        group=request.target.group,
        output=destination.url,
        format=request.format,
        load_id=record.load_id if record else None,
        path=destination.path_of(record.load_id) if record else None,
        rows=record.rows if record else 0,
        ranges=record.ranges if record else (),
        recovered=recovered,
        bad_rows=record.bad_rows if record else None,
        dead_letters=next(iter(record.dead_letters), None) if record else None,
    )
