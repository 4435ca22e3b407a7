"""The Spark side of a load: read the planned ranges, write them to the staging area, count and seal what was written.

Called by load.py. The tasks that fetch records write them, for every format (tasks/). The rows of each partition are
counted where they are written, and compared with what the files hold and with the ranges: a load that does not add up
is not committed (L5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.bad_record_rows import BadCount, sum_bad
from spark_connector.formats.field_presence import FieldsSeen
from spark_connector.formats.placeholder import Path
from spark_connector.formats.value_format import ParseMode
from spark_connector.loads.bad_record_options import MaxBad
from spark_connector.loads.change_files import UnfitChanges, change_layout, table_layout
from spark_connector.loads.changes import ChangeDecoder
from spark_connector.loads.dead_letters import DeadLetters
from spark_connector.loads.destination import Destination, NewSession
from spark_connector.loads.fields import fields_of, refuse_lost_fields
from spark_connector.loads.file_check import check_written
from spark_connector.loads.footers import Count, sum_counts
from spark_connector.loads.grammar import PartitionItem, quoted
from spark_connector.loads.orc_files import orc_of
from spark_connector.loads.plan import confirm_topics
from spark_connector.loads.record import LoadError, LoadRecord, failed_load
from spark_connector.loads.request import LOAD_COLUMN, TABLE_FORMATS, LoadRequest
from spark_connector.loads.tasks.columns import TableColumns, check_sort_by, refuse_alike_fields
from spark_connector.loads.tasks.file_formats import TASK_FORMATS
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.required import with_text
from spark_connector.loads.tasks.task_job import BadRecordFiles, TaskJob
from spark_connector.loads.tasks.task_output import StorageOutput, told_by_tasks
from spark_connector.loads.tasks.transforms import bind, with_partition_columns
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.loads.write_options import ORC, PARQUET, SQL, written_as
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.options.read_options import SourceOptions
from spark_connector.options.selection import Assign
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


@dataclass(frozen=True)
class Written:
    """A load whose rows are written and counted in its `record`: `files` are those of the tasks, of the `layout` that
    the destination has given; `bad_files` are dead letters, of `bad_layout`."""

    record: LoadRecord
    files: WrittenFiles
    layout: FileLayout
    bad_files: WrittenFiles
    bad_layout: FileLayout | None
    found: Findings


def write_load(
    request: LoadRequest,
    destination: Destination,
    record: LoadRecord,
    session: NewSession,
    letters: DeadLetters | None = None,
    begins: Callable[[], object] = lambda: None,
) -> Written:
    """Stage the load, write, count and seal its rows.

    With dead letters these are committed before the load is sealed, because a repair commits what is sealed. A failure
    leaves nothing behind. `begins` is called when the columns fit into the table, right before the first row is read.
    """
    options = options_of(request, record)
    if options.formats.columns:
        record = _with_fields(request, record, options)
    try:
        written = _write(request, options, destination, record, session, letters, begins)
        confirm_topics(request.source, record)
        if letters is not None:
            destination.decide(written.record, written.files)
            letters.commit(written.record, written.bad_files, written.bad_layout)
    except Exception as error:
        overtaken = destination.log.is_overtaken(record)
        destination.discard(record.load_id)
        if letters is not None:
            letters.discard()
        if overtaken:  # the winner has removed our staging directory, so Spark may fail with any error
            raise _overtaken(record) from error
        if isinstance(error, PykafkaError):
            raise
        reason = summary(str(error))
        failure = reason if _is_of_spark(error) else error  # of what an error of Spark stands for, it has the text
        raise failed_load(f"load {record.load_id} failed: {reason}", failure) from error
    try:
        destination.seal(written.record)  # discards the attempt itself when it fails
    except OSError as error:
        if not destination.log.is_overtaken(record):
            raise
        destination.discard(record.load_id)
        raise _overtaken(record) from error  # the winner has removed the files while they were synced
    return written


def _with_fields(request: LoadRequest, record: LoadRecord, options: SourceOptions) -> LoadRecord:
    """With the fields that the table gets by the schemas of `options`. Raises ConfigError where the last load had
    others."""
    if record.upsert is None:
        made = TableColumns.of(request.picked, _schema_of(options))
        schema, decoded = made.schema, [pick.name for pick in made.picks if pick.path[0] in options.formats.columns]
    else:
        schema = ChangeDecoder(record.upsert, _schema_of(options)).columns
        decoded = schema.names
    fields = fields_of(schema, decoded)
    if not request.given.allow_changed_options:
        refuse_lost_fields(record, fields)
    return replace(record, fields=fields)


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def _overtaken(record: LoadRecord) -> OffsetConflict:
    return OffsetConflict(
        f"group '{record.id.group}': another load committed number {record.id.sequence} while "
        f"{record.load_id} was running; nothing of {record.load_id} is kept"
    )


def _write(
    request: LoadRequest,
    options: SourceOptions,
    destination: Destination,
    record: LoadRecord,
    session: NewSession,
    letters: DeadLetters | None,
    begins: Callable[[], object],
) -> Written:
    """The tasks write the rows and the bad records: no record crosses to the JVM.

    Nothing is staged before both tables are known to take their rows.
    """
    if record.upsert is None:
        layout = rows = _layout_of(request, record, options, request.partitioned)
    else:  # the tasks write the records, of which the commit makes the table's rows
        layout = change_layout(_layout_of(request, record, options, ()))
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
    job = TaskJob(
        options, record.topic_ids, layout, told_by_tasks(destination.task_output(place)), is_quiet=request.fails_on_bad
    )
    if record.upsert is not None:
        job = replace(job, unfit_changes=UnfitChanges(record.upsert, layout.schema, rows, fitted.schema))
    if letters is not None and beside is not None:
        job = replace(job, bad_records=BadRecordFiles(beside, letters.stage()))
    ranges = [OffsetRange(range.tp, range.start, range.end) for range in record.ranges if range.size]
    begins()
    result = job.run(session, ranges)
    beside_rows = [] if job.bad_records is None else [(job.bad_records.output, result.bad_files)]
    check_written(f"load {record.load_id}", job.output, result.files, *beside_rows)
    written = _counted(record, result.files)
    bad = sum_bad(result.bad)
    read = _total(written) + (0 if options.formats.mode is ParseMode.PERMISSIVE else _total(bad))
    if request.max_bad is not None or request.fails_on_bad:
        check_bad(record, bad, request.max_bad, read=read)
    if record.format == ORC and result.files:
        made = destination.task_output(place)
        assert isinstance(made, StorageOutput)
        sizes = orc_of(session(), layout, made, result.files, place, request.given.write_options or {})
    else:
        destination.gather(place, result.files)
        sizes = {file.name: file.size for file in result.files}
    sealed = record.completed({tp: count.rows for tp, count in written.items()}, sizes)
    if letters is not None:
        sealed = sealed.with_bad_rows({tp: count.rows for tp, count in bad.items()})
        check_bad_rows(sealed, _counted(record, result.bad_files))
    found = Findings()
    if options.formats.columns:
        found = Findings(read, _total(bad), _absent(result.seen, options, wanted))
    return Written(sealed, result.files, fitted, result.bad_files, beside, found)


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


def _counted(record: LoadRecord, files: WrittenFiles) -> dict[TopicPartition, Count]:
    """The rows of the files by partition. Raises LoadError unless they are rows of the load's ranges."""
    written = sum_counts(count for file in files for count in file.counts)
    counted, held = _total(written), sum(file.metadata().num_rows if file.held is None else file.held for file in files)
    if counted != held:
        raise LoadError(f"load {record.load_id}: the tasks counted {counted} rows, but their files hold {held}")
    check_rows(record, written)
    return written


def _total(counts: Mapping[TopicPartition, Count] | Mapping[TopicPartition, BadCount]) -> int:
    return sum(count.rows for count in counts.values())


def _layout_of(
    request: LoadRequest, record: LoadRecord, options: SourceOptions, partition_by: Sequence[PartitionItem]
) -> FileLayout:
    derived = () if record.format == "iceberg" else partition_by
    columns = TableColumns.of(request.picked, _schema_of(options), derived)
    fields = bind(partition_by, columns.schema, record.format)
    check_sort_by(request.sorted, columns.schema)
    if not request.case_sensitive and record.format != SQL:
        refuse_alike_fields(columns.schema)
    writing = request.writing
    schema = with_text(with_partition_columns(columns.schema, fields), writing.as_text)
    load_id = record.load_id if record.format in TABLE_FORMATS else None
    if load_id is not None:
        schema = schema.append(pa.field(LOAD_COLUMN, pa.string()))
    layout = FileLayout(
        schema,
        columns,
        load_id,
        fields,
        sort_by=request.sorted,
        format=written_as(record.format),
        compression=writing.codec,
        target_file_size=request.target_file_size,
        evolution=request.evolution,
        text=writing.text,
        time_zone=writing.time_zone or request.time_zone,
    )
    TASK_FORMATS[layout.format]().check(layout)
    return layout


def options_of(request: LoadRequest, record: LoadRecord) -> SourceOptions:
    """How tasks read the load's partitions, with the schemas of its formats."""
    source = request.tasks_source
    partitions = Assign(tuple(sorted(range.tp for range in record.ranges if range.size)))
    options = replace(source, selection=replace(source.selection, subscription=partitions))
    return replace(options, formats=with_schemas(options))


def _schema_of(options: SourceOptions) -> pa.Schema:
    """The schema of the batches that the read gives."""
    source = arrow_schema(options.columns)
    if options.formats.columns:
        from spark_connector.formats.record_decoder import decoded_schema

        source = decoded_schema(options.formats, source)
    return source


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
