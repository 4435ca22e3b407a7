"""The format's registration, and what the facade checks before any broker is asked."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructType

import pyspark_pykafka
from broker.errors import ConfigError
from spark_connector.read.readers import KafkaBatchReader, KafkaStreamReader
from spark_connector.read.schema import spark_schema
from spark_connector.source import FORMAT, PykafkaSource

MINIMUM = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
SOURCES = [PykafkaSource, pyspark_pykafka.DefaultSource]


def test_registration_imports_nothing_but_pyspark() -> None:
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_pykafka;"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith(('pyspark.', 'importlib'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pyspark_pykafka']"


def test_a_worker_imports_nothing_heavy_that_plain_records_do_not_need() -> None:
    """Each costs every new worker of Spark some time: pandas a third of a second, the others 15 to 80 ms."""
    program = (
        "import sys, spark_connector.read.readers, spark_connector.read.fetch, spark_connector.read.offset_reader;"
        "print(sorted({'argparse', 'broker.archive', 'crc32c', 'email', 'fastavro', 'pandas', 'pyarrow.compute'}"
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_task_that_writes_keys_and_values_does_without_the_functions_of_arrow() -> None:
    """They take every new worker of Spark 30 ms."""
    program = """
import sys, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
import pyarrow as pa
from spark_connector.options.write_options import parse_write_options
from spark_connector.pandas_later import without_pandas
from spark_connector.write.input_columns import refuse_too_large, to_rows
from spark_connector.write.rows_writer import StickyRuns, partitions_of_rows

with without_pandas():
    text = pa.array(["a", None, "b"])
    given = pa.RecordBatch.from_arrays([text, text], ["key", "value"])
    rows = to_rows(given, parse_write_options(OPTIONS, stream=False))
    refuse_too_large(rows, 1000)
    found = partitions_of_rows(pa.Table.from_batches([rows]), "t", 4, StickyRuns(4), rows_per_run=1)
    assert rows["value"].to_pylist() == rows["key"].to_pylist() == [b"a", None, b"b"] and len(found) == 3
print("pyarrow.compute" in sys.modules)
""".replace("OPTIONS", repr({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "modules",
    [
        "column_choice, spark_connector.write.write_plan, spark_connector.write.writers",
        "writers, spark_connector.write.commit_protocol",
    ],
    ids=["plan", "commit"],
)
def test_who_plans_or_commits_a_write_loads_no_arrow_and_nothing_of_the_tasks(modules: str) -> None:
    program = (
        f"import sys, spark_connector.source, spark_connector.write.{modules};"
        "print(sorted({'numpy', 'pyarrow', 'spark_connector.write.rows_writer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("main", "spared"), [("pyspark.daemon", True), ("pytest", False)])
def test_only_a_process_of_spark_spares_the_collector_what_is_there(main: str, spared: bool) -> None:
    program = (
        "import gc, sys, types; sys.modules['__main__'].__spec__ = types.SimpleNamespace(name=sys.argv[1]);"
        "import spark_connector.spark_worker; print(gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, main], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(spared)


@pytest.mark.parametrize("source", SOURCES)
def test_the_format_is_pykafka_for_batch_and_stream(source: type[DataSource]) -> None:
    assert source.name() == FORMAT == "pykafka"
    made = source(dict(MINIMUM))
    assert made.schema() == spark_schema()
    assert isinstance(made.reader(schema=spark_schema()), KafkaBatchReader)
    assert isinstance(made.streamReader(schema=spark_schema()), KafkaStreamReader)


@pytest.mark.parametrize("source", SOURCES)
def test_wrong_options_fail_at_load(source: type[DataSource]) -> None:
    with pytest.raises(ConfigError, match="Unknown option"):
        source({**MINIMUM, "subscribee": "t"}).schema()


def test_what_depends_on_the_kind_of_query_fails_with_its_reader() -> None:
    made = PykafkaSource({**MINIMUM, "endingOffsets": "latest"})
    assert made.schema() == spark_schema()
    made.reader(spark_schema())
    with pytest.raises(ConfigError, match="ending offset not valid in streaming queries"):
        made.streamReader(spark_schema())
    with pytest.raises(ConfigError, match="can't be latest for batch"):
        PykafkaSource({**MINIMUM, "startingOffsets": "latest"}).reader(spark_schema())


def test_the_schema_is_that_of_the_columns_asked_for() -> None:
    made = PykafkaSource({**MINIMUM, "columns": "headers,Value"})
    assert made.schema().simpleString() == "struct<headers:array<struct<key:string,value:binary>>,value:binary>"
    made.reader(schema=made.schema())
    with pytest.raises(ConfigError, match=r"fixed schema .*it is struct<headers"):
        made.streamReader(schema=spark_schema())


def test_another_schema_is_refused() -> None:
    other = StructType().add("value", LongType())
    for ask in (PykafkaSource(dict(MINIMUM)).reader, PykafkaSource(dict(MINIMUM)).streamReader):
        with pytest.raises(ConfigError, match=r"fixed schema .*leave out \.schema.*struct<value:bigint>"):
            ask(other)


@pytest.mark.parametrize("source", SOURCES)
def test_a_query_keeps_the_schema_that_it_began_with(source: type[DataSource], tmp_path: Path) -> None:
    """Spark asks for the schema in one process, and for the reader in another, of the pickled source."""
    place = tmp_path / "orders.ddl"
    place.write_text("id BIGINT")
    made = source({**MINIMUM, "valueFormat": "json", "valueSchema": str(place)})
    schema = made.schema()
    place.write_text("id BIGINT, name STRING")
    later = pickle.loads(pickle.dumps(made))
    assert isinstance(later.reader(schema), KafkaBatchReader)
