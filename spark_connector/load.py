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
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from spark_connector.destinations import open_all_dead_letters, open_dead_letters, open_destination
from spark_connector.loads.addresses import hadoop_settings
from spark_connector.loads.arguments import given_to
from spark_connector.loads.commit import publish_offsets
from spark_connector.loads.dead_letters import DeadLetters
from spark_connector.loads.destination import Destination, NewSession
from spark_connector.loads.load_loop import Phase
from spark_connector.loads.plan import finished_rerun, plan_load
from spark_connector.loads.record import LoadRecord, LoadResult
from spark_connector.loads.request import Load, LoadRequest, Target
from spark_connector.loads.shared_path import is_on_other_hosts, refuse_unshared
from spark_connector.loads.write import Findings, write_load
from spark_connector.maintenance import recover
from spark_connector.offset_store.base import OffsetConflict

logger = logging.getLogger("pykafka.spark")

__all__ = ["LoadResult", "Phase", "load", "recover", "run_load"]


def load(
    spark: SparkSession,
    *,
    to: str,
    group: str,
    bootstrap_servers: str,
    offsets: str | None = None,
    zookeeper_connect: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    format: str | None = None,
    table: str | None = None,
    catalog: str | None = None,
    keep_snapshots: int | None = None,
    topic: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    starting_offsets: str = "earliest",
    max_records: int | None = None,
    shared_mount: bool = False,
    options: Mapping[str, str] | None = None,
    write_options: Mapping[str, str] | None = None,
    from_load: str | None = None,
    from_directory: str | None = None,
    allow_changed_options: bool = False,
    new_group: bool = False,
    publish_offsets: bool = True,
    target_file_size: int | str | None = None,
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

    `to`: Where the loads go: a directory, local or hdfs://, a Delta table also on s3://, gs:// or abfs://;
    iceberg:NAMESPACE.TABLE, or a database, a URL of SQLAlchemy that ends in #TABLE.
    `group`: Name of this sequence of loads.
    `offsets`: Where the offsets are kept: files, zookeeper, table. Default: the format's.
    `zookeeper_connect`: ZooKeeper for `offsets=zookeeper`.
    `storage_options`: Options of the object store in `to`, such as key, secret and endpoint_url; of hdfs:// Hadoop
    settings, by default Spark's.
    `format`: Output format: parquet, json, orc, avro, delta, iceberg, sql. Default: by `to`, or parquet.
    `table`: Table of the database, where `to` does not end in #TABLE.
    `catalog`: Catalog of an Iceberg table: a name of pyiceberg's configuration.
    `keep_snapshots`: Snapshots that an Iceberg table keeps. Default: 100.
    `bootstrap_servers`: Brokers to contact first.
    `topic`: Topics, comma-separated; or set subscribePattern or assign in `options`.
    `columns`: Columns of the output, such as value.*,key,offset as position. Default: all that are read.
    `partition_by`: Columns that become directories, such as date or day(at),bucket(16,customer).
    `sort_by`: Columns that a file is sorted by, such as customer,at desc.
    `starting_offsets`: Where a partition begins that was never loaded: earliest or JSON.
    `max_records`: Offsets in this load at most.
    `shared_mount`: A local path in `to` or `dead_letters` is one network file system, mounted at this path on every
    host.
    `options`: Options of the reader, such as valueFormat and kafka.security.protocol.
    `write_options`: Options of the output format, such as compression; for sql text: columns of bytes that are UTF-8.
    `from_load`: Load again from this load on, into an empty `to`, up to the group's offsets.
    `from_directory`: With `from_load`: where that load lies (`offsets=files`).
    `allow_changed_options`: Go on although `options` read otherwise than the group's loads so far.
    `new_group`: Load what other groups have loaded there, once more beside it.
    `publish_offsets`: Commit the offsets to the brokers' consumer group, too, where lag tools see them.
    `target_file_size`: Size at which a task begins another file. Default: 128MB.
    `schema_evolution`: What a load may change in its table: none, add (columns) or add,widen (types that grow, too).
    `dead_letters`: Where records go that cannot be decoded: topic:NAME, or exactly once to delta:URL or
    iceberg:NAMESPACE.TABLE.
    `max_bad`: Fail a load with more bad records: a number, or a share of them (0.1%).
    `mode`: What a load does with a table: append, upsert.
    `key`: With `mode=upsert`: the table has one row per key.
    `envelope`: With `mode=upsert`: none, debezium around the rows. Default: none.
    `order_by`: With `mode=upsert`: what orders the records of a key in several partitions.

    Raises ConfigError, OffsetConflict, DataLoss, LoadError, and the client's PykafkaErrors.
    """
    return _load(**locals())


def _load(spark: SparkSession, on_phase: Phase | None, **given: Any) -> LoadResult:
    is_hdfs = given["storage_options"] is None and given["to"].startswith("hdfs://")
    target = Target.of(given, hadoop_settings(spark.conf.getAll) if is_hdfs else {})
    # Times in text are as the session shows them, as Spark's own writers have them.
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    case = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    given = given_to(Load, given)
    request = LoadRequest.build(target, time_zone=zone, case_sensitive=case, master=_master_of(spark), **given)
    return run_load(request, lambda: spark, on_phase or (lambda phase, record: None))


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
        _refuse_unshared("to", request, destination, session)
        on_phase("repair", None)
        recovered = tuple(destination.repair())
        on_phase("plan", None)
        done = finished_rerun(request, destination) if request.given.from_load else None
        if done is not None:
            return _result(request, destination, done, tuple(id for id in recovered if id != done.load_id))
        record, letters = _planned(request, destination, opened)
        if letters is not None:
            _refuse_unshared("dead_letters (--dead-letters)", request, letters.table, session)
        if record is None:
            publish_offsets(request, destination, idle=not recovered)
            return _result(request, destination, None, recovered)

        with letters.settled_on_failure() if letters is not None else contextlib.nullcontext():

            def begins() -> None:
                _refuse_unshared("to", request, destination, session)  # of a table that a catalog's server has made
                on_phase("write", record)

            written = write_load(request, destination, record, session, letters, begins)
            on_phase("commit", written.record)
            destination.commit(written.record, written.files, written.layout)
        publish_offsets(request, destination)
        on_phase("done", written.record)
        _tell(written.found, written.record)
        return replace(_result(request, destination, written.record, recovered), **vars(written.found))


def _refuse_unshared(what: str, request: LoadRequest, place: Destination, session: NewSession) -> None:
    """Raise ConfigError for a place of this host where the executors may run on others."""
    if request.given.shared_mount or not is_on_other_hosts(request.master) or (path := place.local_place()) is None:
        return
    is_connect = request.master.startswith("sc://")
    refuse_unshared(what, path, _master_of(session()) if is_connect else request.master)


def _master_of(spark: SparkSession) -> str:
    """Empty where the session does not tell."""
    try:
        return str(spark.conf.get("spark.master", ""))
    except Exception:  # of py4j or grpc: a service may show none of its settings
        return ""


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
    if request.given.from_directory is None or request.target.offsets != "files":
        return plan_load(request, destination)
    # The load to begin with is in the commit log of another directory.
    with open_destination(replace(request.target, to=request.given.from_directory)) as earlier:
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
