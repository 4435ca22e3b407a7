"""The data source `pykafka` as Spark sees it: options in, readers and writers out.

Spark creates an instance at `load()` and pickles it to every process that plans or reads. Options are checked here: at
`load()` everything that does not depend on the kind of query (`schema` cannot distinguish batch from stream), and the
rest when Spark asks for a reader. No broker is asked before a query runs. Spark asks for a writer when a write runs:
then columns and options are checked, and the brokers asked whether they can do it.

For a session's first query Spark asks for schema, partitions and rows in separate new Python processes, so each imports
only what it needs: readers and writers are imported where they are made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from broker.errors import ConfigError, PykafkaError
from spark_connector.entry_point import entry_point
from spark_connector.formats.value_format import ReadFormats
from spark_connector.options.history_options import parse_history
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.read.schema import source_schema, spark_schema_of, with_schemas
from spark_connector.spark_versions import arrow_schema
from spark_connector.spark_worker import in_spark_worker, in_stream_committer

if TYPE_CHECKING:
    from spark_connector.history_and_tail.fitted_read import FittedRead
    from spark_connector.options.write_options import WriteOptions


FORMAT = "pykafka"


class PykafkaSource(DataSource):
    """`format("pykafka")`; options/option_table.py lists the options."""

    _formats: ReadFormats | None = None
    _fitted: FittedRead | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @entry_point
    def schema(self) -> StructType:
        """Spark's Kafka schema, or the columns and formats of the options.

        Raises ConfigError for options that no kind of query accepts. A schema in a file or a registry is loaded here
        and pickled with this object, so a query has one schema from beginning to end.
        """
        fitted = self._with_history()
        if fitted is not None:
            return spark_schema_of(fitted.schema)
        options = parse_options(self.options, Mode.ANY)
        self._formats = with_schemas(options)
        return source_schema(replace(options, formats=self._formats))

    @entry_point
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises ConfigError, ConnectorError."""
        fitted = self._with_history()
        if fitted is not None:
            from spark_connector.history_and_tail.fitted_read import for_query
            from spark_connector.history_and_tail.readers import HistoryBatchReader

            _refuse_other_schema(schema, spark_schema_of(fitted.schema))
            return HistoryBatchReader(for_query(fitted, Mode.BATCH))
        options = self._read_options(Mode.BATCH)
        _refuse_other_schema(schema, source_schema(options))
        from spark_connector.read.readers import KafkaBatchReader

        return KafkaBatchReader(options)

    @entry_point
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader. Raises ConfigError; in Spark's process, the reader does when it is asked for anything."""
        from spark_connector.read.readers import RefusedStreamReader, make_reader

        try:
            fitted = self._with_history()
            if fitted is not None:
                from spark_connector.history_and_tail.fitted_read import for_query
                from spark_connector.history_and_tail.readers import HistoryStreamReader

                _refuse_other_schema(schema, spark_schema_of(fitted.schema))
                return HistoryStreamReader(for_query(fitted, Mode.STREAM))
            options = self._read_options(Mode.STREAM)
            _refuse_other_schema(schema, source_schema(options))
        except PykafkaError as error:
            if in_spark_worker():
                return RefusedStreamReader(error)
            raise
        return make_reader(options)

    @entry_point
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer. Raises ConfigError, ConnectorError and the brokers' errors."""
        if overwrite:
            raise ConfigError("Save mode overwrite is not allowed for Kafka. Allowed save mode is append.")
        from spark_connector.write.write_plan import plan_write
        from spark_connector.write.writers import KafkaBatchWriter

        return KafkaBatchWriter(plan_write(self._write_options(schema, stream=False)))

    @entry_point
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer of a micro-batch. With `overwrite` (output mode complete) rows are appended too, as in Spark's own
        sink. Raises as `writer`."""
        from spark_connector.write.write_plan import plan_write
        from spark_connector.write.writers import KafkaStreamWriter

        return KafkaStreamWriter(plan_write(self._write_options(schema, stream=True)))

    def _with_history(self) -> FittedRead | None:
        """The table and the topics of a read with `history`, fitted once and pickled; None for other reads."""
        history = parse_history(self.options)
        if history is None or self._fitted is not None:
            return self._fitted
        from spark_connector.history_and_tail.fitted_read import fit_read

        self._fitted = fit_read(history, Mode.ANY)
        return self._fitted

    def _read_options(self, mode: Mode) -> SourceOptions:
        options = parse_options(self.options, mode)
        return replace(options, formats=self._formats or with_schemas(options))

    def _write_options(self, schema: StructType, *, stream: bool) -> WriteOptions:
        from spark_connector.options.write_options import parse_write_options
        from spark_connector.write.column_choice import check_columns, chosen_columns

        options = chosen_columns(schema.names, parse_write_options(self.options, stream=stream))
        check_columns([(one.name, one.dataType.simpleString()) for one in schema.fields], options)
        if not options.formats.columns or (stream and in_stream_committer()):
            return options  # a commit needs no schema, and must not fail because a registry is down
        from spark_connector.formats.record_encoder import loaded

        encoded = {name for one in options.formats.columns.values() for name in one.columns}
        columns = arrow_schema(StructType([field for field in schema.fields if field.name in encoded]))
        return replace(options, formats=loaded(options.formats, options.topic, columns))


def _refuse_other_schema(schema: StructType, ours: StructType) -> None:
    if schema != ours:
        raise ConfigError(
            "Kafka source has a fixed schema and cannot be set with a custom one: leave out .schema(…); it is "
            f"{ours.simpleString()}, not {schema.simpleString()}"
        )
