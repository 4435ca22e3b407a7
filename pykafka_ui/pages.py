"""The pages. Each is a whole document at an address that can be sent to somebody else.

htmx asks for the same address again every few seconds and takes over what has changed, so a page without scripts shows
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import PykafkaError
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.console import Console
from pykafka_ui.listing import ROWS, Listing, listing
from pykafka_ui.records_query import DOWNLOADS, MOST_DOWNLOADED, AskedRecords, FoundRecords, RecordsQuery
from pykafka_ui.render import Renderer, kept_text, segment, setting_text
from pykafka_ui.snapshot import Group, Partition, Snapshot, Topic
from pykafka_ui.status import status_of

Key = Callable[[Any], Any]
_MOST_SHOWN = 500


class Pages:
    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page
        self._rate = console.sampler.last_rate

    def router(self) -> APIRouter:
        pages = APIRouter(include_in_schema=False)
        pages.add_api_route("/", self.overview)
        pages.add_api_route("/topics", self.topics)
        pages.add_api_route("/topics/{name}", self.topic)
        pages.add_api_route("/topics/{name}/settings", self.topic_settings)
        pages.add_api_route("/topics/{name}/records", self.records)
        pages.add_api_route("/topics/{name}/records.{ending}", self.download)
        pages.add_api_route("/groups", self.groups)
        pages.add_api_route("/groups/{name:path}", self.group)
        pages.add_api_route("/brokers", self.brokers)
        pages.add_api_route("/brokers/{broker_id}", self.broker)
        pages.add_api_route("/transactions", self.transactions)
        pages.add_api_route("/archive", self.archive)
        return pages

    def overview(self, request: Request) -> Response:
        found = self._console.sampler.watch()
        busiest = sorted(
            (one for one in found.topics.values() if not one.internal), key=lambda one: -one.size - (one.archived or 0)
        )
        behind = sorted((one for one in found.groups.values() if one.behind.total), key=_by_lag, reverse=True)
        return self._render(
            request,
            "overview.html",
            seen=found,
            busiest=busiest[:10],
            behind=behind[:10],
            unknown=sum(one.has_lag and one.behind.total is None for one in found.groups.values()),
            written=self._console.written(),
            read=self._rate("read"),
            bytes_per_record=_bytes_per_record(found.topics.values()),
        )

    # --- topics

    def topics(
        self, request: Request, q: str = "", sort: str = "name", page: int = 1, internal: bool = False
    ) -> Response:
        found, rate = self._console.sampler.watch(), self._rate
        rows = [
            one for one in found.topics.values() if q.lower() in one.name.lower() and (internal or not one.internal)
        ]
        keys: dict[str, Callable[[Topic], Any]] = {
            "name": lambda one: one.name,
            "partitions": lambda one: len(one.partitions),
            "replication": lambda one: one.replication,
            "records": lambda one: -1 if one.records is None else one.records,
            "size": lambda one: one.size + (one.archived or 0),
            "rate": lambda one: rate("records", one.name) or 0,
            "state": lambda one: -one.not_in_sync,
        }
        extra = (("internal", "1"),) if internal else ()
        shown = listing("/topics", rows, keys, sort=sort, page=page, query=q, extra=extra)
        rates = {one.name: rate("records", one.name) for one in shown.rows}
        return self._render(request, "topics.html", seen=found, listing=shown, rates=rates, internal=internal)

    def topic(self, request: Request, name: str, page: int = 1, sort: str = "partition") -> Response:
        found, one = self._topic(name)
        keys: dict[str, Callable[[Partition], Any]] = {
            "partition": lambda row: row.index,
            "leader": lambda row: row.leader,
            "records": lambda row: -1 if row.records is None else row.records,
            "size": lambda row: row.size,
            "state": lambda row: row.state,
        }
        shown = listing(f"/topics/{segment(name)}", one.partitions, keys, sort=sort, page=page)
        groups = found.readers_of(name)[:ROWS]
        return self._render(
            request,
            "topic.html",
            seen=found,
            topic=one,
            listing=shown,
            groups=groups,
            written=self._console.written(name),
            newest_ms=self._console.newest_ms(name, len(one.partitions)),
            kept=kept_text(self._console.shown_settings(name)),
        )

    def topic_settings(
        self, request: Request, name: str, q: str = "", sort: str = "name", page: int = 1, changed: bool = False
    ) -> Response:
        _, one = self._topic(name)
        shown = _settings(
            f"/topics/{segment(name)}/settings", self._console.topic_settings(name), q, sort, page, changed
        )
        return self._render(
            request, "settings.html", title=f"Settings of {name}", listing=shown, changed=changed, topic=one, every=0
        )

    def _topic(self, name: str) -> tuple[Snapshot, Topic]:
        """One that was just made elsewhere is looked for once more."""
        sampler = self._console.sampler
        if name not in sampler.watch().topics:
            sampler.wait_until(lambda seen: name in seen.topics, 1.0)
        found = sampler.snapshot
        if name not in found.topics:
            raise HTTPException(404 if found.at_ms else 503, f"There is no topic {name!r}.")
        return found, found.topics[name]

    # --- records

    def records(self, request: Request, asked: AskedRecords, *, live: bool = False) -> Response:
        """With what was typed in the form, also when it cannot be shown."""
        try:
            with self._console.records(asked.at_most(_MOST_SHOWN)) as found:
                return self._records(request, asked, found, live=live)
        except PykafkaError as error:
            if asked.topic not in self._console.sampler.watch().topics:
                raise
            return self._records(request, asked, None, live=False, problem=error)

    def _records(
        self,
        request: Request,
        asked: RecordsQuery,
        found: FoundRecords | None,
        *,
        live: bool,
        problem: PykafkaError | None = None,
    ) -> Response:
        status = status_of(problem) if problem else 200
        return self._render(
            request,
            "records.html",
            status=status,
            problem=str(problem or ""),
            topic=asked.topic,
            asked=asked,
            found=found,
            rows=found.rows if found else [],
            live=live,
            every=1 if live else 5 if status >= 500 else 0,
            spark=found.spark(self._console.bootstrap) if found and found.page.records else "",
            curl=f"curl '{request.base_url}api/topics/{segment(asked.topic)}/records?{asked.address()}'",
        )

    def download(self, ending: str, asked: AskedRecords) -> Response:
        if ending not in DOWNLOADS:
            raise HTTPException(404, f"Records can be had as {' or '.join(DOWNLOADS)}.")
        media_type, write = DOWNLOADS[ending]
        attachment = f"attachment; filename*=UTF-8''{segment(asked.topic)}.{ending}"
        with self._console.records(asked.at_most(MOST_DOWNLOADED)) as found:
            content = write(found)
        return Response(content, media_type=media_type, headers={"content-disposition": attachment})

    # --- groups

    def groups(self, request: Request, q: str = "", sort: str = "-lag", page: int = 1) -> Response:
        found = self._console.sampler.watch(groups=True)
        keys: dict[str, Callable[[Group], Any]] = {
            "name": lambda one: one.id,
            "state": lambda one: one.state,
            "kind": lambda one: one.kind,
            "members": lambda one: one.members,
            "lag": _by_lag,
        }
        rows = sorted((one for one in found.groups.values() if q.lower() in one.id.lower()), key=lambda one: one.id)
        shown = listing("/groups", rows, keys, sort=sort, page=page, query=q)
        return self._render(request, "groups.html", seen=found, listing=shown)

    def group(self, request: Request, name: str, page: int = 1, sort: str = "-lag") -> Response:
        found = self._console.sampler.watch(groups=True)
        if name not in found.groups:
            raise HTTPException(404 if found.at_ms else 503, f"There is no group {name!r}.")
        one, about = found.groups[name], self._console.known_group(name)
        keys: dict[str, Callable[[TopicPartition], Any]] = {
            "partition": lambda tp: tp,
            "lag": lambda tp: one.lags.get(tp, one.unread.get(tp, -1)),
        }
        written = sum(self._rate("records", topic) or 0 for topic in one.topics)
        return self._render(
            request,
            "group.html",
            seen=found,
            group=one,
            about=about,
            owners=about.owners if about else {},
            listing=listing(f"/groups/{segment(name)}", one.partitions, keys, sort=sort, page=page),
            caught_up_s=_caught_up_s(one.behind.total or 0, self._rate("read", name) or 0, written),
            is_rate_known=self._rate("read", name) is not None,
        )

    # --- brokers and transactions

    def brokers(self, request: Request) -> Response:
        return self._render(request, "brokers.html", seen=self._console.sampler.watch())

    def broker(
        self, request: Request, broker_id: int, q: str = "", sort: str = "name", page: int = 1, changed: bool = False
    ) -> Response:
        found = self._console.sampler.watch()
        node = next((one for one in found.brokers if one.id == broker_id), None)
        if node is None:
            raise HTTPException(404 if found.at_ms else 503, f"There is no broker {broker_id}.")
        settings = self._console.broker_settings(broker_id)
        return self._render(
            request,
            "broker.html",
            seen=found,
            node=node,
            directories=self._console.log_dirs(broker_id),
            listing=_settings(f"/brokers/{broker_id}", settings, q, sort, page, changed),
            changed=changed,
            every=0,
        )

    def transactions(self, request: Request, *, hanging: bool = False) -> Response:
        """With `hanging` every partition is asked for transactions that no coordinator knows; once, not again."""
        self._console.sampler.watch()
        found, problem = None, ""
        if hanging:
            try:
                found = self._console.hanging_transactions()
            except PykafkaError as error:
                problem = str(error)
        return self._render(
            request,
            "transactions.html",
            every=0 if hanging else 5,
            transactions=self._console.open_transactions(),
            hanging=found,
            problem=problem,
            text=self._console.partitions_text,
        )

    # --- archive

    def archive(self, request: Request, q: str = "", sort: str = "partition", page: int = 1) -> Response:
        """What of each partition is local, archived, or waits to be archived, and why."""
        self._console.sampler.watch()
        archives = self._console.archives()
        keys: dict[str, Key] = {
            "partition": lambda one: one.tp,
            "bytes": lambda one: (-(one.archived_bytes or 0), one.tp),
            "behind": lambda one: (-(one.lag_bytes or 0), one.tp),
            "problem": lambda one: (not one.problem, one.tp),
        }
        rows = [one for one in archives if q.lower() in one.tp.topic.lower()]
        return self._render(
            request,
            "archive.html",
            listing=listing("/archive", rows, keys, sort=sort, page=page, query=q),
            archived=sum(one.archived_bytes or 0 for one in archives),
            behind=sum(one.lag_bytes or 0 for one in archives),
            unknown=any(None in (one.archived_bytes, one.lag_bytes) for one in archives),
            stuck=sum(bool(one.problem) for one in archives),
            partitions=len(archives),
        )


def _bytes_per_record(topics: Iterable[Topic]) -> float:
    known = [
        (one.size, one.records)
        for one in topics
        if not one.internal and one.size >= 0 and one.records and one.archived == 0
    ]
    return sum(size for size, _ in known) / sum(records for _, records in known) if known else 0.0


def _by_lag(group: Group) -> int:
    """Those come last of which nothing is known."""
    total = group.behind.total
    return -1 if total is None else total


def _caught_up_s(behind: int, read: float, written: float) -> float | None:
    """When nothing will be unread if readers and writers go on as they do; None if never, or if nothing is."""
    return behind / (read - written) if behind and read > written else None


def _settings(
    path: str, entries: Iterable[ConfigEntry], query: str, sort: str, page: int, changed: bool
) -> Listing[ConfigEntry]:
    """Those whose name, value or documentation has the text; with `changed` only those that somebody has set."""
    needle = query.strip().casefold()

    def is_wanted(one: ConfigEntry) -> bool:
        if changed and one.source is ConfigSource.DEFAULT_CONFIG:
            return False
        value = "" if one.sensitive else one.value or ""
        texts = (one.name, value, setting_text(one.name, value), one.documentation or "")
        return any(needle in text.casefold() for text in texts)

    keys: dict[str, Callable[[ConfigEntry], Any]] = {
        "name": lambda one: one.name,
        "source": lambda one: (one.source.name, one.name),
    }
    extra = (("changed", "1"),) if changed else ()
    return listing(path, filter(is_wanted, entries), keys, sort=sort, page=page, query=query, extra=extra)
