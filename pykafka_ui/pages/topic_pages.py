"""The pages of topics, from the sampler's snapshot and history, and with two questions for a page of the list; those of
records are in record_pages.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.client.group_descriptions import GroupLag
from broker.errors import ConfigError
from pykafka_ui.console import Console
from pykafka_ui.pages.page_set import ROWS, Key, PageSet, listing, route, settings_listing
from pykafka_ui.render import kept_text, size_text
from pykafka_ui.seen.snapshot import Snapshot, Topic


class TopicPages(PageSet):
    @route("/topics")
    def topics(self, request: Request, q: str = "", state: str = "", *, internal: bool = False) -> Response:
        """With a `state` also internal ones: the overview counts their partitions, too."""
        if state and state not in STATES:
            raise ConfigError(f"state={state[:40]}: expected {' or '.join(STATES)}")
        found = self._console.sampler.watch(groups=True)
        rows = [
            one
            for one in found.topics.values()
            if q.lower() in one.name.lower()
            and (internal or state or not one.internal)
            and (not state or one.count_of(STATES[state]))
        ]
        shown = listing(request, rows, topic_keys(self._console, found))
        return self._render(
            request,
            "topics.html",
            listing=shown,
            rows=topic_rows(self._console, found, shown.rows),
            shares=shares,
            internal=internal,
            asked_state=state,
            partitions=sum(one.count_of(STATES[state]) for one in rows) if state else 0,
        )

    @route("/topics/{name}")
    def topic(self, request: Request, name: str) -> Response:
        found, one = self._topic(name)
        keys = {"partition": "index", "leader": "leader", "records": "records", "size": "size", "state": "state"}
        shown = listing(request, one.partitions, keys, "partition")
        settings = self._console.shown_settings([name]).get(name, {})
        return self._render(
            request,
            "topic.html",
            topic=one,
            listing=shown,
            groups=found.readers_of(name)[:ROWS],
            reading=reading_of(found, name),
            written=self._console.written(name),
            newest_ms=self._console.newest_ms([one]).get(name),
            kept=kept_text(settings),
            badges=badges(one, settings),
            shares=shares,
        )

    @route("/topics/{name}/settings")
    def topic_settings(self, request: Request, name: str, *, changed: bool = False) -> Response:
        _, one = self._topic(name)
        shown = settings_listing(request, self._console.topic_settings(name), changed=changed)
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


STATES: Final = {"under-replicated": "under-replicated", "no-leader": "no leader", "in-sync": "in sync"}
"""As an address says it → the state of a partition."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """The groups that read a topic: how many, the slowest of them, and how far it is behind, None if no group has a
    lag."""

    groups: int = 0
    slowest: str = ""
    behind: GroupLag | None = None

    @property
    def lag(self) -> int | None:
        """None also if it is not known everywhere."""
        return None if self.behind is None or self.behind.unknown else self.behind.total


@dataclasses.dataclass(frozen=True)
class TopicRow:
    """`newest_ms`: -1 of an empty topic, None if it is not known. `kept`: "" if it is not known."""

    topic: Topic
    rate: float | None
    points: list[float | None]
    reading: Reading
    kept: str
    newest_ms: int | None
    badges: Sequence[tuple[str, str]]
    """Words, and what they mean."""


def topic_keys(console: Console, seen: Snapshot) -> Mapping[str, Key]:
    """By what a list of topics can be sorted."""
    return {
        "name": "name",
        "partitions": lambda one: len(one.partitions),
        "replication": "replication",
        "records": "records",
        "size": lambda one: one.size + (one.archived or 0),
        "rate": lambda one: console.sampler.last_rate("records", one.name),
        "groups": lambda one: len(seen.readers_of(one.name)),
        "lag": lambda one: reading_of(seen, one.name).lag,
        "state": lambda one: -one.not_in_sync,
    }


def topic_rows(console: Console, seen: Snapshot, topics: Sequence[Topic]) -> list[TopicRow]:
    """Of the topics of one page."""
    settings, newest = console.shown_settings([one.name for one in topics]), console.newest_ms(topics)
    history = console.sampler.history("records")
    rates = {one.name: history.rate("records", one.name) for one in topics}
    return [
        TopicRow(
            one,
            rates[one.name][-1][1] if rates[one.name] else None,
            [value for _, value in rates[one.name]],
            reading_of(seen, one.name),
            kept_text(settings.get(one.name, {})),
            newest.get(one.name),
            badges(one, settings.get(one.name, {})),
        )
        for one in topics
    ]


def reading_of(seen: Snapshot, topic: str) -> Reading:
    """The slowest has the greatest lag; one whose lag is not known everywhere counts as the slowest."""
    readers = seen.readers_of(topic)
    found = [Reading(len(readers), group.id, behind) for group, behind in readers if group.has_lag]
    return max(found, key=lambda one: float("inf") if one.lag is None else one.lag, default=Reading(len(readers)))


def badges(topic: Topic, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    if topic.internal:
        found.append(("internal", "Kafka's own; the list of topics hides it unless it is asked for"))
    if "compact" in settings.get("cleanup.policy", "").split(","):
        found.append(("compacted", "The newest record of each key is kept"))
    if topic.archived or settings.get("remote.storage.enable") == "true":
        found.append(("archived", "Closed segments are copied to the archive"))
    return found


def shares(size: int, archived: int | None) -> list[tuple[str, float, str]]:
    """Local and archived bytes as parts of a bar; none where one is not known, or nothing is archived."""
    if not archived or size < 0:
        return []
    whole = size + archived
    return [
        ("local", size / whole, f"{size_text(size)} on the leaders' disks"),
        ("archived", archived / whole, f"{size_text(archived)} in the archive"),
    ]
