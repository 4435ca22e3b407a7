"""A look at records as an address says it, and what was found: as rows of a page, JSON, a file, a snippet for Spark.

A row also says why the record is a dead letter, by headers of ours, of share groups, and of Kafka Connect.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

import pyarrow
import pyarrow.parquet
from fastapi import Depends, Path, Query

from broker.client.dead_letter_headers import ATTEMPTS, ERROR, ORIGIN
from broker.errors import ConfigError
from broker.records.record import Header
from broker.tools.client_options import parse_time
from broker.tools.record_text import as_json_data
from pykafka_ui.records import browse
from pykafka_ui.records.browse import From, Page
from pykafka_ui.records.filters import RecordFilter, record_filter
from pykafka_ui.records.json_text import visible
from pykafka_ui.records.values import As, Decoder, ShownValue

_SHORT = {"start": "from", "places": "in", "how": "as"}
"""Names in an address."""


MOST_DOWNLOADED = 10_000
_LONGEST_NUMBER = 40
_LARGEST_MS = 2**63 // 1000
"""Timestamps are in microseconds in Parquet. Some producers send nanoseconds instead of milliseconds."""
_HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("headers", pyarrow.list_(_HEADER)),
    ]
)
"""The columns of `spark.read.format("pykafka")`."""


@dataclasses.dataclass(frozen=True)
class RecordsQuery:
    """The parameters of an address, as text, for pages, downloads and API."""

    topic: Annotated[str, Path(alias="name")]
    start: Annotated[From, Query(alias="from", description="where to begin; end: the newest")] = From.END
    at: Annotated[
        str, Query(description="an offset, a time, or P:OFFSET,… of `older` and `newer`; also without `from`")
    ] = ""
    partition: Annotated[str, Query(description="P,… ; all if left out")] = ""
    limit: Annotated[int, Query(ge=1, description="so many records at most")] = 50
    text: Annotated[str, Query(description="only records that hold this text")] = ""
    places: Annotated[str, Query(alias="in", description="of key,value,headers")] = "key,value,headers"
    path: Annotated[str, Query(description="only values that have something at this JSON path")] = ""
    equals: Annotated[str, Query(description="and it reads so")] = ""
    how: Annotated[As, Query(alias="as", description="how values are shown")] = As.AUTO
    uncommitted: Annotated[bool, Query(description="also aborted and open transactions")] = False

    def query(self) -> browse.Query:
        """Raises ConfigError for text that says nothing."""
        partitions = tuple(number("partition", one) for one in self.partition.split(",") if one.strip())
        return browse.Query(self.topic, self.start, self._at(), partitions, self.limit, not self.uncommitted)

    def at_most(self, limit: int) -> RecordsQuery:
        """Refuse to show more records than `limit` at once. Raises ConfigError."""
        if self.limit > limit:
            raise ConfigError(f"limit: at most {limit}")
        return self

    def _at(self) -> int | dict[int, int]:
        if self.start is From.OFFSET:
            return number("at", self.at or "0")
        if self.start is From.TIME:
            return in_range("at", parse_time("at", self.at[:40]))
        if self.start in (From.AT, From.BEFORE):
            return places_of("at", self.at)
        return 0

    def filter(self, decoder: Decoder) -> RecordFilter:
        places = [one.strip() for one in self.places.split(",") if one.strip()]
        return record_filter(decoder, self.text, places, self.path, self.equals)

    def address(self, **changed: Any) -> str:
        """The parameters that are not the default, to follow `?`."""
        asked = dataclasses.replace(self, **changed)
        values = {
            _SHORT.get(field.name, field.name): str(getattr(asked, field.name)).removeprefix("False").lower()
            if isinstance(field.default, bool)
            else str(getattr(asked, field.name))
            for field in dataclasses.fields(asked)
            if field.name != "topic" and getattr(asked, field.name) != field.default
        }
        return urlencode(values)


# FastAPI reads the parameters here: it cannot evaluate the annotations of a dataclass.
RecordsQuery.__signature__ = inspect.signature(RecordsQuery, eval_str=True)  # type: ignore[attr-defined]


def _asked_records(asked: Annotated[RecordsQuery, Depends()]) -> RecordsQuery:
    """Who types an offset or a time wants it, also without `from`."""
    start, at = asked.start, asked.at.strip()
    if at and start in (From.END, From.START):
        start = From.OFFSET if at.isdecimal() else From.TIME
    return dataclasses.replace(asked, start=start, at=at)


AskedRecords = Annotated[RecordsQuery, Depends(_asked_records)]


@dataclasses.dataclass(frozen=True)
class Row:
    """A record for a page."""

    partition: int
    offset: int
    timestamp: int
    key: ShownValue
    value: ShownValue
    headers: list[tuple[str, ShownValue]]
    state: str
    dead_letter: DeadLetter | None

    @property
    def place(self) -> str:
        """As an address names it, `P:OFFSET`."""
        return f"{self.partition}:{self.offset}"


class FoundRecords:
    def __init__(self, asked: RecordsQuery, page: Page, decoder: Decoder, given_up: int = 0) -> None:
        """`given_up`: how many values the path of the query was too long for."""
        self.asked = asked
        self.page = page
        self.given_up = given_up
        self._decoder = decoder

    @property
    def rows(self) -> list[Row]:
        decode, how = self._decoder.decode, self.asked.how
        return [
            Row(
                one.partition,
                one.record.offset,
                one.record.timestamp,
                decode(one.record.key),
                decode(one.record.value, how),
                [(visible(name), decode(content)) for name, content in one.record.headers],
                one.state,
                dead_letter(one.record.headers),
            )
            for one in self.page.records
        ]

    @property
    def older(self) -> str | None:
        """The parameters of the page before; None if there is none."""
        return self._other(From.BEFORE, self.page.older)

    @property
    def newer(self) -> str | None:
        return self._other(From.AT, self.page.newer)

    @property
    def lasting(self) -> str:
        """The parameters that show these records also when there are newer ones."""
        return self._other(From.BEFORE, self.page.ends or None) or self.asked.address()

    def _other(self, start: From, at: Mapping[int, int] | None) -> str | None:
        return None if at is None else self.asked.address(start=start, at=places_text(at))

    def documents(self) -> list[dict[str, Any]]:
        """One JSON object per record. Bytes that are not UTF-8 are `{"base64": …}`."""
        return [
            {
                "topic": self.asked.topic,
                "partition": one.partition,
                "offset": one.record.offset,
                "timestamp": one.record.timestamp,
                "key": as_json_data(one.record.key),
                "value": as_json_data(one.record.value),
                "headers": [[name, as_json_data(content)] for name, content in one.record.headers],
                **({"transaction": one.state} if one.state else {}),
            }
            for one in self.page.records
        ]

    def document(self) -> dict[str, Any]:
        older, newer = self.page.older, self.page.newer
        return {
            "topic": self.asked.topic,
            "records": self.documents(),
            "looked_at": self.page.looked_at,
            "complete": self.page.is_complete,
            "given_up": self.given_up,
            "older": None if older is None else places_text(older),
            "newer": None if newer is None else places_text(newer),
        }

    def json_lines(self) -> bytes:
        return "".join(json.dumps(one) + "\n" for one in self.documents()).encode()

    def parquet(self) -> bytes:
        rows: list[dict[str, Any]] = [
            {
                "key": one.record.key,
                "value": one.record.value,
                "topic": self.asked.topic,
                "partition": one.partition,
                "offset": one.record.offset,
                "timestamp": one.record.timestamp * 1000 if abs(one.record.timestamp) < _LARGEST_MS else None,
                "headers": [{"key": name, "value": content} for name, content in one.record.headers],
            }
            for one in self.page.records
        ]
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, _SCHEMA), file)
        return file.getvalue()

    def spark(self, bootstrap: str) -> str:
        """PySpark code that reads just the range of these records."""
        offsets: dict[int, list[int]] = {}
        for one in self.page.records:
            offsets.setdefault(one.partition, []).append(one.record.offset)
        topic, read = self.asked.topic, sorted(offsets.items())
        assigned = json.dumps({topic: [index for index, _ in read]})
        starting = json.dumps({topic: {index: min(of) for index, of in read}})
        ending = json.dumps({topic: {index: max(of) + 1 for index, of in read}})
        return (
            'spark.read.format("pykafka") \\\n'
            f'    .option("kafka.bootstrap.servers", {bootstrap!r}) \\\n'
            f'    .option("assign", {assigned!r}) \\\n'
            f'    .option("startingOffsets", {starting!r}) \\\n'
            f'    .option("endingOffsets", {ending!r}) \\\n'
            "    .load()"
        )


DOWNLOADS: dict[str, tuple[str, Callable[[FoundRecords], bytes]]] = {
    "jsonl": ("application/x-ndjson", FoundRecords.json_lines),
    "parquet": ("application/vnd.apache.parquet", FoundRecords.parquet),
}
"""Ending → media type, and what writes it."""


def number(name: str, text: str) -> int:
    """A whole number of 64 bits in an address or a form. Raises ConfigError that names the field."""
    digits = text.strip()
    if len(digits) > _LONGEST_NUMBER or not digits.removeprefix("-").isdecimal():
        raise ConfigError(f"{name}={text[:_LONGEST_NUMBER]}: expected a number")
    return in_range(name, int(digits))


def in_range(name: str, value: int) -> int:
    """Raises ConfigError for more than 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name}={value}: there is no such offset or time")
    return value


def places_of(name: str, text: str) -> dict[int, int]:
    """`P:OFFSET,…` by partition. Raises ConfigError that names the field."""
    pairs = (one.partition(":") for one in text.split(",") if one)
    return {number(name, index): number(name, offset) for index, _, offset in pairs}


def places_text(at: Mapping[int, int]) -> str:
    return ",".join(f"{index}:{offset}" for index, offset in sorted(at.items()))


_SHARE, _CONNECT = "__dlq.errors.", "__connect.errors."
_LONGEST_HEADER: Final = 1_000
"""Bytes of a header that are read."""
_LONGEST_PLACE: Final = 19


class DeadLetter(NamedTuple):
    """`why` and `by` are words for people; "" if nothing says it. `topic`, `partition`, `offset`: where the record was
    first, "" and -1 if nothing says it."""

    why: str
    by: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @property
    def is_found(self) -> bool:
        """Whether it says which record it was."""
        return bool(self.topic) and self.partition >= 0 and self.offset >= 0


def dead_letter(headers: tuple[Header, ...]) -> DeadLetter | None:
    """None for a record that says nothing of the kind. Of several headers of a name the last counts."""
    texts = {name: visible((content or b"")[:_LONGEST_HEADER].decode(errors="replace")) for name, content in headers}
    if ERROR in texts:
        attempts = texts.get(ATTEMPTS, "")
        return _placed(texts, ORIGIN, texts[ERROR], f"after {attempts} attempts" if attempts else "")
    if f"{_SHARE}message" in texts:
        group, count = texts.get(f"{_SHARE}group", "?"), texts.get(f"{_SHARE}delivery.count", "?")
        return _placed(texts, _SHARE, texts[f"{_SHARE}message"], f"in share group {group}, delivered {count} times")
    told = [texts.get(f"{_CONNECT}exception.{part}", "") for part in ("class.name", "message")]
    if any(told):
        connector = texts.get(f"{_CONNECT}connector.name", "")
        by = f"in connector {connector}" if connector else ""
        return _placed(texts, _CONNECT, ": ".join(filter(None, told)), by)
    return None


def _placed(texts: Mapping[str, str], prefix: str, why: str, by: str) -> DeadLetter:
    partition, offset = (_number(texts.get(prefix + name, "")) for name in ("partition", "offset"))
    return DeadLetter(why, by, texts.get(f"{prefix}topic", ""), partition, offset)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_PLACE else -1
