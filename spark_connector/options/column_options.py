"""Which columns a read gives: options `columns` and `includeHeaders`.

Called by read_options.py. Spark cannot tell a Python source which columns a query uses, so who wants speed says so:
what is not named is not decoded. Raises ConfigError naming the column and what comes close to it.
"""

from __future__ import annotations

import difflib

from broker.errors import ConfigError
from spark_connector.options.values import OptionValues

__all__ = ["COLUMNS", "parse_columns"]

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Every column of Spark's own Kafka source, in its order; the last only with includeHeaders."""

_BY_NAME = {name.lower(): name for name in COLUMNS}


def parse_columns(values: OptionValues) -> tuple[str, ...]:
    """The columns in the order asked for; those of Spark's own source when `columns` is not set."""
    include_headers = values.boolean("includeHeaders")
    text = values.text("columns")
    if text is None:
        return COLUMNS if include_headers else COLUMNS[:-1]
    columns = tuple(_column(name.strip()) for name in text.split(","))
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(f"Option 'columns' names '{name}' twice")
    if "includeHeaders" in values and include_headers != ("headers" in columns):
        raise ConfigError(
            f"Option 'includeHeaders' is {str(include_headers).lower()}, option 'columns' says otherwise: '{text}'. "
            "Leave out 'includeHeaders'; 'columns' may name headers like any other column."
        )
    return columns


def _column(name: str) -> str:
    """Its name as Spark writes it; any case may be given, as everywhere in Spark."""
    known = _BY_NAME.get(name.lower())
    if known is not None:
        return known
    if not name:
        raise ConfigError(f"Option 'columns' has an empty name. Columns are: {', '.join(COLUMNS)}")
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=2, cutoff=0.6)
    hint = f"Did you mean {' or '.join(repr(_BY_NAME[match]) for match in close)}? " if close else ""
    raise ConfigError(f"Option 'columns': unknown column '{name}'. {hint}Columns are: {', '.join(COLUMNS)}")
