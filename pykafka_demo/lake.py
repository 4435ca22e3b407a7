"""The table of the demo: an Iceberg table in a catalog that is a SQLite file, and a program that reads it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.errors import ConfigError

CATALOG, NAMESPACE = "demo", "lake"
TABLE = f"{NAMESPACE}.flights"

QUERY_FILE = "query.py"
QUERY = f"""\
from pyiceberg.catalog import load_catalog

table = load_catalog("{CATALOG}").load_table("{TABLE}")
flights = table.scan(selected_fields=("dest", "arr_delay")).to_pandas()
print(flights.groupby("dest").arr_delay.agg(["size", "mean"]).nlargest(5, "size").round(1))
"""
"""Five destinations: how many flights, and by how many minutes they were late."""


def set_up(directory: Path) -> None:
    """Write the configuration of pyiceberg that names the catalog, make the namespace, and write the program."""
    if importlib.util.find_spec("pyiceberg") is None:
        raise ConfigError("the demo's table needs pyiceberg: pip install 'pykafka-spark[demo]'")
    (directory / "warehouse").mkdir()
    lines = [f"    {name}: {value}" for name, value in _properties(directory).items()]
    text = "\n".join(["catalog:", f"  {CATALOG}:", *lines, ""])
    (directory / ".pyiceberg.yaml").write_text(text, encoding="utf-8")
    (directory / QUERY_FILE).write_text(QUERY, encoding="utf-8")
    _catalog(directory).create_namespace(NAMESPACE)


def environment(directory: Path) -> dict[str, str]:
    """Of processes that use the catalog. Spark's Python workers run this Python, which has the connector."""
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYICEBERG_HOME": str(directory)}


def read_positions(directory: Path) -> pa.Table:
    """(partition, offset) of every row of the table, read by pyiceberg."""
    return _catalog(directory).load_table(TABLE).scan(selected_fields=("partition", "offset")).to_arrow()


def _catalog(directory: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOG, **_properties(directory))


def _properties(directory: Path) -> dict[str, str]:
    uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse"
    return {"type": "sql", "uri": uri, "warehouse": warehouse}
