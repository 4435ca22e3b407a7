"""The parameters of an address that asks for records, declared once for pages, downloads and API."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from broker.errors import ConfigError
from pykafka_ui.browse import From
from pykafka_ui.records_query import RecordsQuery
from pykafka_ui.values import As


def _asked_records(
    name: str,
    start: Annotated[From, Query(alias="from", description="where to begin; end: the newest")] = From.END,
    at: Annotated[
        str, Query(description="an offset, a time, or P:OFFSET,… of `older` and `newer`; also without `from`")
    ] = "",
    partition: Annotated[str, Query(description="P,… ; all if left out")] = "",
    limit: Annotated[int, Query(ge=1, description="so many records at most")] = 50,
    text: Annotated[str, Query(description="only records that hold this text")] = "",
    places: Annotated[str, Query(alias="in", description="of key,value,headers")] = "key,value,headers",
    path: Annotated[str, Query(description="only values that have something at this JSON path")] = "",
    equals: Annotated[str, Query(description="and it reads so")] = "",
    how: Annotated[As, Query(alias="as", description="how values are shown")] = As.AUTO,
    uncommitted: Annotated[bool, Query(description="also aborted and open transactions")] = False,
) -> RecordsQuery:
    if at.strip() and start in (From.END, From.START):  # who types an offset or a time wants it
        start = From.OFFSET if at.strip().isdecimal() else From.TIME
    return RecordsQuery(
        name, start, at.strip(), partition, limit, text, places, path, equals, how, uncommitted=uncommitted
    )


AskedRecords = Annotated[RecordsQuery, Depends(_asked_records)]


def at_most(asked: RecordsQuery, limit: int) -> RecordsQuery:
    """Refuse to show more records than `limit` at once. Raises ConfigError."""
    if asked.limit > limit:
        raise ConfigError(f"limit: at most {limit}")
    return asked
