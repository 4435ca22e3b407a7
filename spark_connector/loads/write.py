"""The Spark side of a load: read the planned ranges, write them to the staging area, count and seal what was written.

Called by load.py. Tasks that fetch records write them into files, of directories and of tables (tasks/). Spark writes
orc, and its output committer keeps the rows of a task that ran twice only once. database/staged_rows.py has a writer of
its own. The rows of each partition are counted where they are written, and
compared with the rows that were read and with the ranges: a load that does not add up is not committed (L5).
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from pyspark_pykafka import DefaultSource
from spark_connector.formats.bad_record_rows import BadCount, sum_bad
from spark_connector.formats.field_presence import FieldsSeen
from spark_connector.formats.placeholder import Path
from spark_connector.formats.value_format import ParseMode, ReadFormats
from spark_connector.loads.bad_record_options import MaxBad
from spark_connector.loads.change_files import UnfitChanges, change_layout, table_layout
from spark_connector.loads.changes import ChangeDecoder
from spark_connector.loads.column_checks import DERIVED
from spark_connector.loads.data_sources import register_once
from spark_connector.loads.dead_letters import DeadLetters
from spark_connector.loads.destination import Destination, NewSession
from spark_connector.loads.fields import fields_of, refuse_lost_fields
from spark_connector.loads.file_check import SHARED, check_written
from spark_connector.loads.footers import Count, sum_counts
from spark_connector.loads.grammar import parse_columns, parse_partition_by, parse_sort_by, quoted
from spark_connector.loads.plan import confirm_topics
from spark_connector.loads.reading import decodes
from spark_connector.loads.record import LoadError, LoadRecord, failed_load
from spark_connector.loads.request import (
    DIRECT_FORMATS,
    LOAD_COLUMN,
    TABLE_FORMATS,
    LoadRequest,
)
from spark_connector.loads.tasks.columns import TableColumns, check_sort_by
from spark_connector.loads.tasks.file_formats import TASK_FORMATS
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_job import BadRecordFiles, TaskJob
from spark_connector.loads.tasks.transforms import bind, with_partition_columns
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.write_options import PARQUET
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.outages import summary
from spark_connector.read.arrow_batches import arrow_schema
from spark_connector.read.planning import OffsetRange
from spark_connector.read.schema import with_schemas


@dataclass(frozen=True)
class Findings:
    """What a load has found out about its records; see LoadResult."""

    read: int | None = None
    malformed: int | None = None
    absent_fields: tuple[str, ...] = ()


def write_load(
    request: LoadRequest,
    destination: Destination,
    record: LoadRecord,
    session: NewSession,
    letters: DeadLetters | None = None,
    begins: Callable[[], object] = lambda: None,
) -> tuple[LoadRecord, Sequence[WrittenFile], Findings]:
    """Stage the load, write, count and seal its rows; gives the sealed record, the files of the direct road, and what
    was found out about the records.

    With dead letters these are committed before the load is sealed, because a repair commits what is sealed. A failure
    leaves nothing behind. `begins` is called when the columns fit into the table, right before the first row is read.
    """
    options = _options_of(request.options, record)
    if options.formats.columns:
        record = _with_fields(request, record, options)
    files: Sequence[WrittenFile] = ()
    found = Findings()
    try:
        if record.format in DIRECT_FORMATS:
            sealed, files, bad_files, found = _write_directly(
                request, options, destination, record, session, letters, begins
            )
        else:
            place = destination.stage(record)
            bad = Observation()
            frame = read_ranges(session(), record, request.options, fails_on_bad=request.fails_on_bad, bad=bad)
            begins()
            write_rows = destination.own_writer(record.format) or functools.partial(write_files, destination)
            sealed = write_rows(frame, record, place, request.given.write_options or {})
            if request.source.formats.corrupt_columns:
                found = Findings(sealed.rows, int(bad.get["bad"]))
        confirm_topics(request, record)
        if letters is not None:
            destination.decide(sealed, files)
            letters.commit(sealed, bad_files)
    except Exception as error:
        overtaken = destination.is_overtaken(record)
        destination.discard(record.load_id)
        if letters is not None:
            letters.discard()
        if overtaken:  # the winner has removed our staging directory, so Spark may fail with any error
            raise _overtaken(request, record) from error
        if isinstance(error, PykafkaError):
            raise
        # An OSError is one of this process; what an error of Spark stands for is in its text.
        reason = summary(str(error))
        failure = error if isinstance(error, OSError) else reason
        raise failed_load(f"load {record.load_id} failed: {reason}", failure) from error
    try:
        destination.seal(sealed)  # discards the attempt itself when it fails
    except OSError as error:
        if not destination.is_overtaken(record):
            raise
        destination.discard(record.load_id)
        raise _overtaken(request, record) from error  # the winner has removed the files while they were synced
    return sealed, files, found


def _with_fields(request: LoadRequest, record: LoadRecord, options: SourceOptions) -> LoadRecord:
    """With the fields that the table gets by the schemas of `options`. Raises ConfigError where the last load had
    others."""
    if record.upsert is None:
        made = TableColumns.of(parse_columns(record.columns), _schema_of(options))
        schema, decoded = made.schema, [pick.name for pick in made.picks if pick.path[0] in options.formats.columns]
    else:
        schema = ChangeDecoder(record.upsert, _schema_of(options)).columns
        decoded = schema.names
    fields = fields_of(schema, decoded)
    refuse_lost_fields(request, record, fields)
    return replace(record, fields=fields)


def _overtaken(request: LoadRequest, record: LoadRecord) -> OffsetConflict:
    return OffsetConflict(
        f"group '{request.target.group}': another load committed number {record.id.sequence} while "
        f"{record.load_id} was running; nothing of {record.load_id} is kept"
    )


def _write_directly(
    request: LoadRequest,
    options: SourceOptions,
    destination: Destination,
    record: LoadRecord,
    session: NewSession,
    letters: DeadLetters | None,
    begins: Callable[[], object],
) -> tuple[LoadRecord, Sequence[WrittenFile], Sequence[WrittenFile], Findings]:
    """The tasks write the files themselves, of the rows and of the bad records: no record crosses to the JVM.

    Nothing is staged before both tables are known to take their rows.
    """
    if record.upsert is None:
        layout = rows = _layout_of(request, record, options)
    else:  # the tasks write the records, of which the commit makes the table's rows
        layout = change_layout(_layout_of(request, replace(record, partition_by=()), options))
        rows = table_layout(record, layout)
    beside = None
    if letters is not None:
        codec = layout.compression if layout.format == PARQUET else "zstd"
        beside = letters.file_layout(record, codec, layout.target_file_size)
    fitted = destination.file_layout(record, rows)
    if record.upsert is None:
        layout = fitted
        wanted = [pick.path for pick in layout.columns.picks]
    else:
        wanted = [("key",), ("value", *ChangeDecoder(record.upsert, layout.schema).row_path)]
    options = _looking_for_placeholders(options, wanted)
    place = destination.stage(record)
    job = TaskJob(options, record.topic_ids, layout, destination.task_output(place), is_quiet=request.fails_on_bad)
    if record.upsert is not None:
        job = replace(job, unfit_changes=UnfitChanges(record.upsert, layout.schema, rows, fitted.schema))
    if letters is not None and beside is not None:
        job = replace(job, bad_records=BadRecordFiles(beside, letters.stage()))
    ranges = [OffsetRange(range.tp, range.start, range.end) for range in record.ranges if range.size]
    begins()
    result = job.run(session, ranges)
    check_written(f"load {record.load_id}", job.output, result.files)
    if job.bad_records is not None:
        check_written(f"load {record.load_id}", job.bad_records.output, result.bad_files)
    written = _counted(record, result.files)
    bad = sum_bad(result.bad)
    read = _total(written) + (0 if options.formats.mode is ParseMode.PERMISSIVE else _total(bad))
    if request.max_bad is not None or request.fails_on_bad:
        check_bad(record, bad, request.max_bad, read=read)
    destination.gather(place, result.files)
    sealed = record.completed(
        {tp: count.rows for tp, count in written.items()}, {file.name: file.size for file in result.files}
    )
    if letters is not None:
        sealed = sealed.with_bad_rows({tp: count.rows for tp, count in bad.items()})
        check_bad_rows(sealed, _counted(record, result.bad_files))
    found = Findings()
    if options.formats.columns:
        found = Findings(read, _total(bad), _absent(result.seen, options, wanted))
    return sealed, result.files, result.bad_files, found


def _absent(seen: FieldsSeen, options: SourceOptions, wanted: Sequence[Path]) -> tuple[str, ...]:
    """The fields that no record has, of those that the table has columns of (`wanted`)."""
    types = {field.name: field.type for field in _schema_of(options)}
    paths = seen.absent(options.formats, types)
    kept = (path for path in paths if any(all(map(str.__eq__, path, one)) for one in wanted))
    return tuple(".".join(map(quoted, path)) for path in kept)


def _looking_for_placeholders(options: SourceOptions, wanted: Sequence[Path]) -> SourceOptions:
    """With a placeholder only those records are bad that have it in what the table gets of them (`wanted`)."""
    formats = options.formats
    if formats.unavailable is None:
        return options
    fields = tuple((name, tuple(path[1:] for path in wanted if path[0] == name)) for name in formats.columns)
    formats = replace(formats, unavailable=replace(formats.unavailable, fields=fields))
    return replace(options, formats=formats)


def _counted(record: LoadRecord, files: Sequence[WrittenFile]) -> dict[TopicPartition, Count]:
    """The rows of the files by partition. Raises LoadError unless they are rows of the load's ranges."""
    written = sum_counts(count for file in files for count in file.counts)
    counted, held = _total(written), sum(file.metadata().num_rows if file.held is None else file.held for file in files)
    if counted != held:
        raise LoadError(f"load {record.load_id}: the tasks counted {counted} rows, but their files hold {held}")
    check_rows(record, written)
    return written


def _total(counts: Mapping[TopicPartition, Count] | Mapping[TopicPartition, BadCount]) -> int:
    return sum(count.rows for count in counts.values())


def _layout_of(request: LoadRequest, record: LoadRecord, options: SourceOptions) -> FileLayout:
    partition_by = parse_partition_by(record.partition_by)
    derived = () if record.format == "iceberg" else partition_by
    columns = TableColumns.of(parse_columns(record.columns), _schema_of(options), derived)
    fields = bind(partition_by, columns.schema, record.format)
    sort_by = parse_sort_by(request.sort_by)
    check_sort_by(sort_by, columns.schema)
    schema = with_partition_columns(columns.schema, fields)
    load_id = record.load_id if record.format in TABLE_FORMATS else None
    writing = request.writing
    if load_id is not None:
        schema = schema.append(pa.field(LOAD_COLUMN, pa.string()))
    layout = FileLayout(
        schema,
        columns,
        load_id,
        fields,
        sort_by=sort_by,
        format=PARQUET if record.format in TABLE_FORMATS else record.format,
        compression=writing.codec,
        target_file_size=request.target_file_size,
        evolution=request.evolution,
        text=writing.text,
        time_zone=writing.time_zone or request.time_zone,
    )
    TASK_FORMATS[layout.format].check(layout)
    return layout


def read_ranges(
    spark: SparkSession,
    record: LoadRecord,
    options: Mapping[str, str],
    *,
    fails_on_bad: bool = False,
    bad: Observation | None = None,
) -> DataFrame:
    """The planned offsets as a batch DataFrame, with the columns of a partitioned layout (request.py).

    `options` are the reader's, without those that choose topics and offsets. `fails_on_bad`: a bad record fails the
    job; the columns for its bytes stay, because a table may have them. `bad` counts bad records that are rows.
    """
    ranges = _range_options(record)
    formats = _options_of(options, record).formats if decodes(options) else ReadFormats()
    if fails_on_bad:
        options = {**options, "mode": ParseMode.FAILFAST.value}
    try:
        frame = spark.read.format("pykafka").options(**options, **ranges).load()
    except Exception as error:
        # Spark looks for Python data sources once. If its worker is killed then, or a module of another package fails,
        # the session never finds any (4.3). The class of the error depends on the kind of session.
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        spark.dataSource.register(DefaultSource)
        frame = spark.read.format("pykafka").options(**options, **ranges).load()
    corrupt = formats.corrupt_columns.values()
    if fails_on_bad and corrupt:
        frame = frame.withColumns({name: F.lit(None).cast("binary") for name in corrupt})
    if bad is not None and corrupt:
        is_bad = functools.reduce(operator.or_, (F.col(f"`{name}`").isNotNull() for name in corrupt))
        frame = frame.observe(bad, F.count_if(is_bad).alias("bad"))
    if record.columns:
        source = _schema_of(_options_of(options, record))
        made = TableColumns.of(parse_columns(record.columns), source, parse_partition_by(record.partition_by))
        return frame.selectExpr(*made.expressions())
    derived = {name: F.expr(DERIVED[name]) for name in record.partition_by if name in DERIVED}
    return frame.withColumns(derived) if derived else frame  # Spark Connect refuses an empty mapping


def _options_of(options: Mapping[str, str], record: LoadRecord) -> SourceOptions:
    """The options of the load's read, with the schemas of its formats."""
    parsed = parse_options({**options, **_range_options(record)}, Mode.BATCH)
    return replace(parsed, formats=with_schemas(parsed))


def _schema_of(options: SourceOptions) -> pa.Schema:
    """The schema of the batches that the read gives."""
    source = arrow_schema(options.columns)
    if options.formats.columns:
        from spark_connector.formats.record_decoder import decoded_schema

        source = decoded_schema(options.formats, source)
    return source


def _range_options(record: LoadRecord) -> dict[str, str]:
    """The reader's options that choose the load's topics and offsets."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for range in record.ranges:
        if range.size == 0:
            continue  # the partition may no longer exist
        partitions.setdefault(range.topic, []).append(range.partition)
        starts.setdefault(range.topic, {})[str(range.partition)] = range.start
        ends.setdefault(range.topic, {})[str(range.partition)] = range.end
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def write_files(
    destination: Destination,
    frame: DataFrame,
    record: LoadRecord,
    directory: str,
    write_options: Mapping[str, str],
) -> LoadRecord:
    """Write the frame's rows to `directory` of the destination with one of Spark's own writers.

    Gives the record with files and rows. Raises LoadError when the files do not hold what they should.
    """
    output, format = destination.output, record.format
    assert output is not None
    destination.prepare(record, frame.schema.json())

    def write(observed: DataFrame) -> None:
        writer = observed.write.format(format).options(**write_options)
        writer.partitionBy(*record.partition_by).save(output.url_of(directory))

    written = write_counted(frame, record, write, lambda: _count(frame.sparkSession, format, output, directory))
    return record.completed(written, output.data_files(directory))


def write_counted(
    frame: DataFrame,
    record: LoadRecord,
    write: Callable[[DataFrame], None],
    count: Callable[[], Mapping[TopicPartition, Count]],
) -> dict[TopicPartition, int]:
    """Write the frame's rows with `write` and compare them with what `count` finds; gives the rows per partition.

    Raises LoadError when they differ, or are not the rows of the load's ranges.
    """
    observation = Observation()
    write(frame.observe(observation, F.count(F.lit(1)).alias("rows")))
    written = count()
    total, passed = _total(written), int(observation.get["rows"])
    if total != passed:
        lost = f". If executors run on other hosts, they may not share its path. {SHARED}" if total < passed else ""
        raise LoadError(f"load {record.load_id}: Spark read {passed} rows, but its output holds {total}{lost}")
    check_rows(record, written)
    return {tp: count.rows for tp, count in written.items()}


def save_by_tasks(frame: DataFrame, source: type[DataSource], options: Mapping[str, str]) -> None:
    """Write the frame with a data source of our own."""
    register_once(frame.sparkSession, source)
    frame.write.format(source.name()).mode("append").options(**options).save()


def check_rows(record: LoadRecord, written: Mapping[TopicPartition, Count]) -> None:
    """Compare the rows that were written with the ranges.

    Raises LoadError for any difference, except fewer rows than offsets (compaction, transaction markers).
    """
    planned = {range.tp: range for range in record.ranges}
    for tp, count in sorted(written.items()):
        range = planned.get(tp)
        fits = range is not None and range.start <= count.low and count.high < range.end
        if not fits or count.rows > count.high - count.low + 1:
            asked = f"offsets {range.start} to {range.end - 1}" if range else "nothing"
            raise LoadError(
                f"load {record.load_id}: asked for {asked} of {tp.topic}-{tp.partition}, but the output holds "
                f"{count.rows} rows with offsets {count.low} to {count.high}"
            )


def check_bad_rows(record: LoadRecord, written: Mapping[TopicPartition, Count]) -> None:
    """Compare the bad records that were decoded with those that were written, and both kinds of rows with the ranges.

    Raises LoadError for any difference.
    """
    for range in record.ranges:
        rows = written[range.tp].rows if range.tp in written else 0
        if rows != range.bad:
            raise LoadError(
                f"load {record.load_id}: {range.bad} records of {range.topic}-{range.partition} could not be decoded, "
                f"but {rows} dead letters were written"
            )
        if rows + (range.rows or 0) > range.size:
            raise LoadError(
                f"load {record.load_id}: {range.rows} rows and {rows} dead letters of {range.topic}-{range.partition}, "
                f"but the range has {range.size} offsets"
            )


def check_bad(record: LoadRecord, bad: Mapping[TopicPartition, BadCount], most: MaxBad | None, *, read: int) -> None:
    """Raise LoadError when more records are bad than `most` allows of the `read` ones; None allows none."""
    if not (bad if most is None else most.is_exceeded(_total(bad), read)):
        return
    first = bad[min(bad)]
    found, apart = "are malformed", ", keep such records apart (dead_letters, --dead-letters), or "
    ways = f"{apart}load them as NULL (option mode=PERMISSIVE)"
    if record.upsert is not None:
        found += " (cannot be decoded, and would count as a delete)"
        ways = f"{apart}leave them out (option mode=DROPMALFORMED)"
    if most is not None:
        found, ways = f"cannot be decoded, more than max_bad (--max-bad) {most.text} allows", ", or with a higher limit"
    raise LoadError(
        f"load {record.load_id}: {_total(bad):,} of {read:,} records {found}. The first is offset {first.first} of "
        f"topic '{first.topic}', partition {first.partition}: {first.reason}. Nothing was loaded. Look at it with "
        f"pykafka consume --topic {first.topic} --partition {first.partition} --offset {first.first} "
        f"--max-messages 1; then load with a schema that fits{ways}"
    )


def _count(spark: SparkSession, format: str, output: Storage, directory: str) -> dict[TopicPartition, Count]:
    """By reading the rows."""
    if not output.data_files(directory):
        return {}
    rows = (
        spark.read.format(format)
        .schema("topic string, partition int, offset long")
        .load(output.pattern_of(directory))
        .groupBy("topic", "partition")
        .agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("low"), F.max("offset").alias("high"))
        .collect()
    )
    return sum_counts(Count(*row) for row in rows)
