"""ORC files of a load: Spark makes them of the parquet files that the tasks have written.

pyarrow's writer of ORC cannot take the place of Spark's (26.0). It cuts a time before 1970 toward zero, which leaves
nanoseconds below 0, and Java's readers end at them; and it has no attributes of types, by which Spark tells a
TIMESTAMP_NTZ from a number.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from broker.storage.storage import open_storage
from spark_connector.loads.record import LoadError
from spark_connector.loads.shared_path import SHARED
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.written_file import WrittenFiles


def orc_of(
    spark: SparkSession,
    layout: FileLayout,
    output: StorageOutput,
    files: WrittenFiles,
    directory: str,
    write_options: Mapping[str, str],
) -> dict[str, int]:
    """Write the rows of these files of the tasks as ORC into `directory` of the storage; gives name → bytes.

    Raises LoadError when the new files have more rows or fewer, and Spark's errors. No order is kept: Spark sorts anew
    by partitions that are texts.
    """
    storage = open_storage(output.url, output.options)
    schema = from_arrow_schema(layout.schema, prefer_timestamp_ntz=True)
    reader = spark.read.schema(schema).option("basePath", storage.url_of(output.directory))
    reader = reader.option("datetimeRebaseMode", "CORRECTED")  # dates before 1582 are what they are
    rows = reader.parquet(*(storage.pattern_of(f"{output.directory}/{file.name}") for file in files))
    writer = rows.write.options(**write_options).partitionBy(*(field.name for field in layout.partition_by))
    writer.orc(storage.url_of(directory))
    sizes, written = storage.data_files(directory), sum(file.rows for file in files)
    held = spark.read.orc(storage.pattern_of(directory)).count() if sizes else 0
    if held != written:
        lost = f". If executors run on other hosts, they may not share its path. {SHARED}" if held < written else ""
        raise LoadError(f"the tasks have written {written} rows, but the ORC files hold {held}{lost}")
    return sizes
