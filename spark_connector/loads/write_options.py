"""What the tasks of a load write, and the write options: a row for each format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.write_format import TO_JSON, JsonText

PARQUET: Final = "parquet"
"""The format of the files of tables, and the default."""
ORC: Final = "orc"
"""Spark makes it of the tasks' parquet files, and takes the write options (orc_files.py)."""
SQL: Final = "sql"
"""Rows of a database."""


@dataclass(frozen=True)
class Files:
    """The files of one format. `suffixes`: codec, as users name it → how their names end; the first codec is the
    default, and without codecs tasks write parquet instead. `others`: further names of codecs. `takes`: write options
    beside `compression`."""

    suffixes: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)
    takes: tuple[str, ...] = ()


FILES: Final[Mapping[str, Files]] = {
    PARQUET: Files(
        dict.fromkeys(("zstd", "snappy", "gzip", "lz4", "brotli", "none"), ".parquet"),
        {"uncompressed": "none", "lz4_raw": "lz4"},
    ),
    "json": Files(
        {
            "none": ".json",
            "gzip": ".json.gz",
            "bzip2": ".json.bz2",
            "deflate": ".json.deflate",
            "snappy": ".json.snappy",
            "lz4": ".json.lz4",
            "zstd": ".json.zst",
        },
        {"uncompressed": "none"},
        ("dateFormat", "timestampFormat", "timestampNTZFormat", "ignoreNullFields", "timeZone"),
    ),
    ORC: Files({}),
    "avro": Files(dict.fromkeys(("snappy", "deflate", "null"), ".avro")),
    SQL: Files({"none": ""}),
}
"""What writes them is in tasks/file_formats.py."""


def written_as(format: str) -> str:
    """What the tasks of a load of this format write, one of FILES."""
    return format if format in FILES and FILES[format].suffixes else PARQUET


@dataclass(frozen=True)
class Writing:
    """How files of one format are written. `time_zone`, of times in text; None if no write option names it.
    `as_text`: columns of bytes that a database gets as text."""

    codec: str
    text: JsonText = TO_JSON
    time_zone: str | None = None
    as_text: tuple[str, ...] = ()


def parse_write_options(format: str, given: Mapping[str, str]) -> Writing:
    """The write options of a load of this format. Raises ConfigError."""
    if format == ORC:
        return Writing("zstd")
    files = FILES[written_as(format)]
    options = {name.lower(): str(value) for name, value in given.items()}
    if format == SQL:
        as_text = options.pop("text", "").split(",")
        if options:
            raise ConfigError(f"a load into a database takes the write option 'text' only, not {', '.join(options)}")
        return Writing("none", as_text=tuple(name.strip() for name in as_text if name.strip()))
    codec = options.pop("compression", next(iter(files.suffixes))).lower()
    codec = files.others.get(codec, codec)
    takes = {name.lower(): options.pop(name.lower()) for name in files.takes if name.lower() in options}
    if options or codec not in files.suffixes:
        known = f"options {', '.join(files.takes)} and 'compression'" if files.takes else "option 'compression' only"
        raise ConfigError(f"{format} output takes the write {known}: one of {', '.join(files.suffixes)}")
    if takes.get("ignorenullfields", "true").lower() not in ("true", "false"):
        raise ConfigError(f"write option 'ignoreNullFields' must be true or false, not '{takes['ignorenullfields']}'")
    text = JsonText(
        takes.get("ignorenullfields", "true").lower() == "true",
        takes.get("timestampformat", TO_JSON.timestamp_format),
        takes.get("timestampntzformat", TO_JSON.timestamp_ntz_format),
        takes.get("dateformat", TO_JSON.date_format),
    )
    return Writing(codec, text, takes.get("timezone"))
