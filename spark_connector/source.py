"""The data source `pykafka` as Spark sees it: options in, readers out.

Spark makes an instance at `load()` and pickles it to every process that plans or reads. Options are checked
here, at `load()` for all that does not depend on the kind of query (`schema` cannot tell batch from stream), and
when Spark asks for a reader for the rest; no broker is asked before a query runs.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from broker.errors import ConfigError
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.read.batch_reader import KafkaBatchReader
from spark_connector.read.schema import source_schema
from spark_connector.read.stream_reader import KafkaStreamReader

__all__ = ["FORMAT", "PykafkaSource"]

FORMAT = "pykafka"


class PykafkaSource(DataSource):
    """`spark.read.format("pykafka")` and `spark.readStream.format("pykafka")`; options/table.py lists the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Spark's Kafka schema, or the columns asked for. Raises ConfigError for options no kind of query takes."""
        return source_schema(parse_options(self.options, Mode.ANY))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises ConfigError, ConnectorError."""
        options = parse_options(self.options, Mode.BATCH)
        _refuse_other_schema(schema, options)
        return KafkaBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader. Raises ConfigError."""
        options = parse_options(self.options, Mode.STREAM)
        _refuse_other_schema(schema, options)
        return KafkaStreamReader(options)


def _refuse_other_schema(schema: StructType, options: SourceOptions) -> None:
    ours = source_schema(options)
    if schema != ours:
        raise ConfigError(
            "Kafka source has a fixed schema and cannot be set with a custom one: leave out .schema(…); it is "
            f"{ours.simpleString()}, given was {schema.simpleString()}"
        )
