"""One line of CSV per value to a struct column: pyarrow's reader for whole columns, Python for single values.

The semantics are those of Spark's from_csv: fields are matched by position; an empty field is null, quoted or not; an
empty value is a row of nulls. A field of another type and a wrong number of fields make a bad record (from_csv nulls
the fields it cannot read). Quotes within quotes are doubled (RFC 4180) or, as in Spark, escaped by a backslash. A line
end after the record is ignored.

Values are joined by line feeds for pyarrow, with a row of nulls at the end. A value with a line feed or carriage return
is read in Python, so each value is at most one row, and the number of rows shows whether an open quote swallowed
others.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from broker.errors import ConfigError
from spark_connector.formats.text_casts import cast_texts, parse_text
from spark_connector.formats.value_decoder import BadValue, Decoded, as_lines, in_two_ways, skipping_nulls

# Values for Python: empty ones, several lines, both quotes and backslashes, and a byte order mark at the beginning.
# pyarrow drops the mark of the first value, and from_csv that of a task's first value; here it is always text.
_ODD: Final = r'(?s)\A\z|[\r\n]|".*\\|\\.*"|\A\xef\xbb\xbf'


class CsvDecoder:
    """Decodes to `kind`, a struct of fields that are not nested."""

    def __init__(self, kind: pa.DataType, separator: str = ",") -> None:
        if not pa.types.is_struct(kind):
            raise ConfigError(f"CSV values need a schema of fields like 'a INT, b STRING', not {kind}")
        for one in kind:
            if pa.types.is_nested(one.type) or pa.types.is_binary(one.type):
                raise ConfigError(f"CSV values cannot hold field {one.name}: {one.type}")
        self.type = kind
        self._separator = separator

    def decode(self, values: pa.Array) -> Decoded:
        return skipping_nulls(values, self._decode)

    def _decode(self, values: pa.Array) -> Decoded:
        return in_two_ways(values, pc.match_substring_regex(values, _ODD), self.type, self._whole, self._one)

    def _whole(self, values: pa.Array) -> pa.Array | None:
        try:
            table = self._read(values)
            if table.num_rows != len(values) + 1:
                return None
            fields = [
                cast_texts(pa.concat_arrays(column.chunks)[:-1], one.type)
                for column, one in zip(table.columns, self.type, strict=True)
            ]
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return pa.StructArray.from_arrays(fields, fields=list(self.type))

    def _read(self, values: pa.Array) -> pa.Table:
        last = pa.array([self._separator.encode() * (self.type.num_fields - 1)], values.type)
        text = as_lines(pa.concat_arrays([values, last]))
        names = [str(position) for position in range(self.type.num_fields)]
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=text.size + 1, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._separator, newlines_in_values=True, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )

    def _one(self, raw: bytes) -> Any:
        try:
            fields = _fields(raw.decode("utf-8"), self._separator)
        except UnicodeDecodeError as error:
            raise BadValue(f"not UTF-8: {error}") from None
        if fields == [None]:
            return {}
        if len(fields) != self.type.num_fields:
            raise BadValue(f"{len(fields)} fields instead of {self.type.num_fields}")
        element = {}
        for text, one in zip(fields, self.type, strict=True):
            try:
                element[one.name] = None if text is None else parse_text(text, one.type)
            except BadValue as error:
                raise BadValue(f"field {one.name}: {error}") from None
        return element


def _fields(line: str, separator: str) -> list[str | None]:
    """The fields of one record; None for an empty field. Raises BadValue."""
    line = line.removesuffix("\n").removesuffix("\r")
    fields: list[str | None] = []
    at = 0
    while True:
        text, at = _quoted(line, at + 1) if line.startswith('"', at) else ("", at)
        end = line.find(separator, at)
        tail = line[at : end if end >= 0 else len(line)]
        if "\n" in tail or "\r" in tail:
            raise BadValue("more than one line")
        text += tail
        fields.append(text or None)
        if end < 0:
            return fields
        at = end + 1


def _quoted(line: str, at: int) -> tuple[str, int]:
    """The text from `at` to the closing quote, and the position after the quote."""
    text: list[str] = []
    while at < len(line):
        pair = line[at : at + 2]
        if pair in {'""', '\\"', "\\\\"}:
            text.append(pair[1])
            at += 2
        elif pair[0] == '"':
            return "".join(text), at + 1
        else:
            text.append(pair[0])
            at += 1
    raise BadValue("a quote is not closed")
