"""How to read a table of loads with the programs that people have: snippets that run as they stand, and commands of
`pykafka loads`. Pure. No secret is in them: what a store or a database needs of these comes from the environment.
"""

from __future__ import annotations

import glob
import shlex
from typing import NamedTuple

from broker.storage.object_stores import object_store_of
from broker.storage.storage import open_storage
from broker.storage.url_secrets import without_secrets
from spark_connector.loads.request import Target

_GLOB = set("[]{}*?\\")
_SHOWN_OPTIONS = ("endpoint", "region", "allow_http")
"""Parts of the names of a store's options that a snippet names; keys and tokens come from the environment."""


class Snippet(NamedTuple):
    """`code` is Python and leaves the rows in `rows`. `needs`: what else must be there, "" for nothing."""

    tool: str
    code: str
    needs: str = ""


def snippets(target: Target, format: str) -> list[Snippet]:
    """For each program that can read the table as it stands; `format` is that of its newest load."""
    if target.format == "sql":
        return _of_database(target)
    if target.format == "iceberg":
        return _of_iceberg(target)
    if target.format == "delta":
        return _of_delta(target)
    return _of_files(without_secrets(target.to), format)


def command(target: Target, verb: str, *more: str) -> str:
    """A command of `pykafka loads` for the group, as a shell takes it."""
    words = ["pykafka", "loads", verb, "--to", without_secrets(target.to), "--group", target.group]
    given = {
        "--format": target.format if target.format == "delta" else None,
        "--catalog": target.catalog,
        "--zookeeper": target.zookeeper_connect,
    }
    words += [word for name, value in given.items() if value for word in (name, value)]
    return shlex.join([*words, *more])


def _of_files(to: str, format: str) -> list[Snippet]:
    reads_globs = not _GLOB.isdisjoint(to)  # Spark takes the path of files for a pattern
    spark = [] if reads_globs else [_spark(f"spark.read.format({format!r}).load({to!r})")]
    path = to.removeprefix("file://")
    if "://" in path:
        return spark  # HDFS, which the others reach by settings of the machine
    if format != "parquet":
        return spark
    files = f"{glob.escape(path.rstrip('/'))}/load=*/**/*.parquet"
    quoted = files.replace("'", "''")
    select = f"SELECT * FROM read_parquet('{quoted}', hive_partitioning = true, union_by_name = true)"
    return [
        *spark,
        _rows("DuckDB", "import duckdb\n\n", f"duckdb.sql({select!r})"),
        _rows("polars", "import polars as pl\n\n", f"pl.read_parquet({files!r}, hive_partitioning=True)"),
        _rows("pandas", "import pandas as pd\n\n", f"pd.read_parquet({path!r})"),
    ]


def _of_delta(target: Target) -> list[Snippet]:
    to, options = without_secrets(target.to), _options(target)
    given = f", storage_options={options!r}" if options else ""
    opened = f"from deltalake import DeltaTable\n\ntable = DeltaTable({to!r}{given})\n"
    jar, needs = (
        f"the jar io.delta:delta-spark{' and settings of the store' if options else ''}",
        "pip install deltalake",
    )
    return [
        _spark(f"spark.read.format('delta').load({to!r})", jar),
        _rows("DuckDB", f"import duckdb\n{opened}", "duckdb.from_arrow(table.to_pyarrow_dataset())", needs),
        _rows("polars", "import polars as pl\n\n", f"pl.read_delta({to!r}{given})", needs),
        _rows("pandas", opened, "table.to_pandas()", needs),
    ]


def _of_iceberg(target: Target) -> list[Snippet]:
    name, catalog = ".".join(target.iceberg_name.identifier), target.catalog or ""
    opened = f"from pyiceberg.catalog import load_catalog\n\ntable = load_catalog({catalog!r}).load_table({name!r})\n"
    needs = f"pip install pyiceberg, and the catalog {catalog} in .pyiceberg.yaml or the environment"
    parts = ".".join(f"`{part}`" for part in (catalog, *target.iceberg_name.identifier))
    config = f".config({f'spark.sql.catalog.{catalog}'!r}, 'org.apache.iceberg.spark.SparkCatalog')"
    return [
        _spark(
            f"spark.read.table({parts!r})",
            f"the jar org.apache.iceberg:iceberg-spark-runtime, and spark.sql.catalog.{catalog}.type and .uri",
            config,
        ),
        _rows("DuckDB", opened, "table.scan().to_duckdb('rows').table('rows')", needs),
        _rows("polars", opened, "table.scan().to_polars()", needs),
        _rows("pandas", opened, "table.scan().to_pandas()", needs),
    ]


def _of_database(target: Target) -> list[Snippet]:
    address = target.address
    url, schema = without_secrets(address.url), f", schema={address.schema!r}" if address.schema else ""
    needs = "the password of the user, which this page does not show" if url != address.url else ""
    opened = f"from sqlalchemy import MetaData, Table, create_engine, select\n\nengine = create_engine({url!r})\n"
    asked = f"table = Table({address.table!r}, MetaData(), autoload_with=engine{schema})\n"
    return [
        _rows(
            "pandas", f"import pandas as pd\n{opened}", f"pd.read_sql_table({address.table!r}, engine{schema})", needs
        ),
        _rows("polars", f"import polars as pl\n{opened}{asked}", "pl.read_database(select(table), engine)", needs),
    ]


def _spark(read: str, needs: str = "", config: str = "") -> Snippet:
    session = f"from pyspark.sql import SparkSession\n\nspark = SparkSession.builder{config}.getOrCreate()"
    return Snippet("Spark", f"{session}\nrows = {read}\nrows.show()", needs)


def _rows(tool: str, opened: str, read: str, needs: str = "") -> Snippet:
    return Snippet(tool, f"{opened}rows = {read}\nprint(rows)", needs)


def _options(target: Target) -> dict[str, str]:
    if object_store_of(target.to) is None:
        return {}
    options = open_storage(target.to, target.storage_options or {}).object_store_options or {}
    return {name: value for name, value in options.items() if any(part in name for part in _SHOWN_OPTIONS)}
