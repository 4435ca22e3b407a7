"""The pages of records: some of a topic, also live, two side by side, what became of one, and files of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import HTTPException, Query
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.loads.places import fates, passed_by
from pykafka_ui.pages.page_set import PageSet, route
from pykafka_ui.records.browse import From, Page
from pykafka_ui.records.record_difference import differences
from pykafka_ui.records.records_query import (
    DOWNLOADS,
    MOST_DOWNLOADED,
    AskedRecords,
    FoundRecords,
    RecordsQuery,
    Row,
    places_of,
    places_text,
)
from pykafka_ui.render import segment, status_of

_MOST_SHOWN = 500
_MOST_FOLLOWED = 200
"""Partitions of which it is counted what a live page has passed by: their offsets are in its address."""


class RecordPages(PageSet):
    @route("/topics/{name}/records")
    def records(
        self,
        request: Request,
        asked: AskedRecords,
        *,
        live: bool = False,
        seen: str = "",
        passed: Annotated[int, Query(ge=0)] = 0,
        against: str = "",
    ) -> Response:
        """With what was typed in the form, also when it cannot be shown.

        `seen`, `passed`: of a live page, the ends that it has reached (`P:OFFSET,…`), and how many records were never
        shown. `against`: the record that another one is chosen to be compared with.
        """
        try:
            with self._console.records(asked.at_most(_MOST_SHOWN)) as found:
                more = self._followed(asked, found.page, seen, passed) if live and asked.start is From.END else {}
                return self._records(request, asked, found, against, **more)
        except PykafkaError as error:
            if asked.topic not in self._console.sampler.watch().topics:
                raise
            every = 5 if status_of(error) >= 500 else 0
            return self._records(request, asked, None, against, problem=error, every=every)

    def _followed(self, asked: RecordsQuery, page: Page, seen: str, passed: int) -> dict[str, Any]:
        """A live page asks for the newest records once a second; what came in between and did not fit is counted."""
        is_counted = len(page.ends) <= _MOST_FOLLOWED
        passed += unseen(page, places_of("seen", seen))
        follow = f"&seen={places_text(page.ends)}&passed={passed}" if is_counted else ""
        address = f"/topics/{segment(asked.topic)}/records?{asked.address()}&live=true{follow}"
        return {"live": True, "every": 1, "address": address, "passed": passed if is_counted else None}

    def _records(
        self, request: Request, asked: RecordsQuery, found: FoundRecords | None, against: str, **more: Any
    ) -> Response:
        rows = found.rows if found else []
        shown: dict[str, Any] = {
            "live": False,
            "passed": None,
            "every": 0,
            "topic": asked.topic,
            "asked": asked,
            "found": found,
            "rows": rows,
            "against": against,
            "became": self._became(asked.topic, rows[0]) if asked.limit == 1 and rows else None,
            "spark": found.spark(self._console.bootstrap) if found and rows else "",
            "curl": f"curl '{request.base_url}api/topics/{segment(asked.topic)}/records?{asked.address()}'",
        }
        return self._render(request, "records.html", **shown | more)

    def _became(self, topic: str, row: Row) -> dict[str, Any]:
        """Where the record went. Places of loads are read for it, so only a page of one record tells."""
        tp, seen = TopicPartition(topic, row.partition), self._console.sampler.watch(groups=True)
        loads = self._console.loads
        return {
            "groups": passed_by(seen, tp, row.offset),
            "loads": None if loads is None else fates(loads.places, tp, row.offset, seen.cluster_id),
        }

    @route("/topics/{name}/compare")
    def compare(self, request: Request, name: str, a: str, b: str) -> Response:
        left, right = self._one(name, "a", a), self._one(name, "b", b)
        found = differences(left, right)
        return self._render(
            request,
            "compare.html",
            every=0,
            topic=name,
            left=left,
            right=right,
            changed=[one for one in found if not one.is_equal],
            equal=[one for one in found if one.is_equal],
        )

    def _one(self, topic: str, field: str, place: str) -> Row:
        """The record at `P:OFFSET`, also of a transaction that was aborted or is open."""
        places = places_of(field, place)
        if len(places) != 1:
            raise ConfigError(f"{field}={place[:40]}: expected one record as PARTITION:OFFSET")
        ((partition, offset),) = places.items()
        asked = RecordsQuery(topic, From.OFFSET, str(offset), str(partition), 1, uncommitted=True)
        with self._console.records(asked) as found:
            for row in found.rows:
                if row.offset == offset:
                    return row
        raise HTTPException(404, f"{topic} has no record at offset {offset} of partition {partition}.")

    @route("/topics/{name}/records.{ending}")
    def download(self, ending: str, asked: AskedRecords) -> Response:
        if ending not in DOWNLOADS:
            raise HTTPException(404, f"Records can be had as {' or '.join(DOWNLOADS)}.")
        media_type, write = DOWNLOADS[ending]
        attachment = f"attachment; filename*=UTF-8''{segment(asked.topic)}.{ending}"
        with self._console.records(asked.at_most(MOST_DOWNLOADED)) as found:
            content = write(found)
        return Response(content, media_type=media_type, headers={"content-disposition": attachment})


def unseen(page: Page, before: Mapping[int, int]) -> int:
    """How many offsets behind those of `before` are also behind what the page has looked at: they are never shown."""
    return sum(max((page.older or {}).get(index, 0) - offset, 0) for index, offset in before.items())
