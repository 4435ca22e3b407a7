"""Whether all is well with a cluster, and what is not, worst first, each with the page where one looks further.

Pure: what was seen goes in, sentences come out. What could not be looked at is said as unknown, never as well. The
overview shows it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from broker.tools.output import counted
from pykafka_ui.console import OpenTransaction
from pykafka_ui.loads.series_health import Judged
from pykafka_ui.render import count, duration_text, segment, size_text
from pykafka_ui.seen.history import Point, is_growing
from pykafka_ui.seen.snapshot import Snapshot

KINDS = ("bad", "warn", "unknown")
"""Worst first."""
FULL, NEARLY_FULL = 0.95, 0.85
"""Shares of a disk that are used."""
WAITING_SEGMENTS = 3
"""Closed segments of a partition that are not archived. One or two is as it should be: they are copied in turns."""
SOON_S = 30 * 86_400
"""Before the end of a certificate."""
_DAYS_S = 7 * 86_400
_WHERE = {"groups": "/groups", "sizes": "/brokers", "archives": "/archive"}
_EACH = 5
"""Groups, disks, loads with a sentence of their own; the rest of a kind is counted in one."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """`kind` is one of `KINDS`; `address` a page of the console."""

    kind: str
    text: str
    address: str = "/"


@dataclasses.dataclass(frozen=True)
class Health:
    """All findings, worst first. `looked_at`: what was looked at, in words."""

    findings: Sequence[Finding]
    looked_at: Sequence[str]

    @property
    def kind(self) -> str:
        return self.findings[0].kind if self.findings else "ok"

    @property
    def word(self) -> str:
        wrong = Counter(one.kind for one in self.findings)
        if wrong["bad"]:
            more = f", {wrong['warn']:,} to look at" if wrong["warn"] else ""
            return f"{counted(wrong['bad'], 'thing')} {'is' if wrong['bad'] == 1 else 'are'} wrong{more}"
        if wrong["warn"]:
            return f"{counted(wrong['warn'], 'thing')} to look at"
        return "Not all could be looked at" if self.findings else "All is well"


def health_of(
    seen: Snapshot, lag_of: Callable[[str], Sequence[Point]], now_s: float, others: Iterable[Finding] = ()
) -> Health:
    """`lag_of`: the last hour of a group's lag. `others`: what else was found, of loads, say."""
    if not seen.at_ms:
        if seen.error:
            return Health([Finding("bad", f"The cluster does not answer. {seen.error}")], [])
        return Health([Finding("unknown", "Nothing was seen of the cluster yet")], [])
    found = [
        *_of_brokers(seen),
        *_of_partitions(seen),
        *_of_disks(seen),
        *_of_archives(seen),
        *_of_groups(seen, lag_of),
        *_of_certificates(seen.certificates, now_s),
        *others,
        *_unseen(seen),
    ]
    return Health(sorted(found, key=lambda one: KINDS.index(one.kind)), list(_looked_at(seen)))


def _unseen(seen: Snapshot) -> Iterator[Finding]:
    """Why nothing is known of what; a look that failed says more than that nobody has looked."""
    why = {**seen.unseen, **{text.partition(":")[0]: text for text in seen.others}}
    for what, text in why.items():
        yield Finding("unknown", text[:1].upper() + text[1:], _WHERE.get(what, "/"))


def _of_brokers(seen: Snapshot) -> Iterator[Finding]:
    if seen.error:
        yield Finding("bad", f"The cluster does not answer: what follows is what it said last. {seen.error}")
    if seen.controller < 0:
        yield Finding("bad", "There is no controller: topics and leaders cannot change", "/brokers")
    for one in seen.away:
        yield Finding(
            "bad", f"Broker {one} is away: it has replicas of {counted(seen.kept[one], 'partition')}", "/brokers"
        )


def _of_partitions(seen: Snapshot) -> Iterator[Finding]:
    for kind, state, words in (
        ("bad", "no leader", "without a leader: nobody reads or writes them"),
        ("warn", "under-replicated", "under-replicated: fewer replicas are in sync than there should be"),
    ):
        counts = Counter(tp.topic for tp, one in seen.partitions.items() if one.state == state)
        if counts:
            whose = f"of {next(iter(counts))}" if len(counts) == 1 else f"of {counted(len(counts), 'topic')}"
            text = f"{counted(counts.total(), 'partition')} {whose} {'is' if counts.total() == 1 else 'are'} {words}"
            yield Finding(kind, text, f"/topics?state={state.replace(' ', '-')}&internal=1")


def _of_disks(seen: Snapshot) -> Iterator[Finding]:
    found = []
    for one in seen.disks:
        where, address = f"{one.path} of broker {one.broker_id}", f"/brokers/{one.broker_id}"
        if one.error is not None:
            found.append(Finding("bad", f"{where} is out of use: {one.error}", address))
        elif one.total_bytes > 0 and one.usable_bytes >= 0:
            used = 1 - one.usable_bytes / one.total_bytes
            if used >= NEARLY_FULL:
                text = f"The disk of {where} is {math.floor(used * 100)} % full: {size_text(one.usable_bytes)} are left"
                found.append(Finding("bad" if used >= FULL else "warn", text, address))
    yield from _some(found, "directories", "/brokers")


def _of_archives(seen: Snapshot) -> Iterator[Finding]:
    stuck = [one for one in seen.archives if one.problem]
    if stuck:
        text = f"The archive of {counted(len(stuck), 'partition')} does not go on: {stuck[0].tp}, {stuck[0].problem}"
        yield Finding("bad", text, "/archive?sort=problem")
    waiting = [one for one in seen.archives if not one.problem and (one.lag_segments or 0) >= WAITING_SEGMENTS]
    if waiting:
        size = size_text(sum(one.lag_bytes or 0 for one in waiting))
        text = f"The archive is behind in {counted(len(waiting), 'partition')}: {size} wait to be archived"
        yield Finding("warn", text, "/archive?sort=behind")
    unknown = sum(one.lag_segments is None and not one.problem for one in seen.archives)
    if unknown:
        yield Finding("unknown", f"How far the archive of {counted(unknown, 'partition')} is, is not known", "/archive")


def _of_groups(seen: Snapshot, lag_of: Callable[[str], Sequence[Point]]) -> Iterator[Finding]:
    found, unknown, young = [], 0, 0
    for name, one in seen.groups.items():
        if not one.has_lag:
            continue
        total = one.behind.total
        if total is None:
            unknown += 1
        elif total and (grows := is_growing(lag_of(name))) is None:
            young += 1
        elif total and grows:
            who = "" if one.members else ", and no member reads"
            text = f"Group {name} falls behind: its lag is {count(total)} and grows{who}"
            found.append((total, Finding("warn", text, f"/groups/{segment(name)}")))
    yield from _some(
        [one for _, one in sorted(found, key=lambda of: -of[0])], "groups fall behind", "/groups?state=growing"
    )
    beyond = sum(bool(one.beyond) for one in seen.groups.values())
    if beyond:
        text = f"{counted(beyond, 'group')} committed beyond the end of a log, which was cut or made again"
        yield Finding("warn", text, "/groups?state=beyond")
    if unknown:
        yield Finding("unknown", f"The lag of {counted(unknown, 'group')} is not known", "/groups?state=unknown")
    if young:
        text = f"Whether the lag of {counted(young, 'group')} grows is not known yet"
        yield Finding("unknown", text, "/groups?state=behind")


def _of_certificates(ends_s: Mapping[int, float], now_s: float) -> Iterator[Finding]:
    found = []
    for broker, end in sorted(ends_s.items(), key=lambda one: one[1]):
        left, whose = end - now_s, f"The certificate of broker {broker}"
        if left < 0:
            found.append(Finding("bad", f"{whose} has ended {duration_text(-left)} ago", f"/brokers/{broker}"))
        elif left < SOON_S:
            kind = "bad" if left < _DAYS_S else "warn"
            found.append(Finding(kind, f"{whose} ends in {duration_text(left)}", f"/brokers/{broker}"))
    yield from _some(found, "certificates", "/brokers")


def of_loads(series: Sequence[Judged], *, is_whole: bool) -> Iterator[Finding]:
    """Those series that are not well. `is_whole`: whether all places were looked at."""
    found = [
        Finding(how.kind, f"The loads of {one.group or one.place} are {how.word}: {how.why}", one.address)
        for one, _, how in series
        if how.kind in KINDS
    ]
    yield from _some(found, "series of loads", "/loads")
    if not is_whole:
        yield Finding("unknown", "Loads are not known yet", "/loads")


def of_transactions(overdue: Sequence[OpenTransaction] | None) -> Iterator[Finding]:
    """`overdue`: those that their coordinator should have ended; None if they are not known."""
    if overdue is None:
        yield Finding("unknown", "Whether transactions are overdue is not known", "/transactions")
    elif overdue:
        number, oldest = counted(len(overdue), "transaction"), overdue[0].about.transactional_id
        yield Finding("warn", f"{number} should have ended: readers wait for {oldest}", "/transactions")


def _some(found: Sequence[Finding], what: str, address: str) -> Iterator[Finding]:
    """The first few, and how many more there are, as bad as the worst of these."""
    ordered = sorted(found, key=lambda one: KINDS.index(one.kind))
    yield from ordered[:_EACH]
    if len(ordered) > _EACH:
        yield Finding(ordered[_EACH].kind, f"{len(ordered) - _EACH:,} more {what}", address)


def _looked_at(seen: Snapshot) -> Iterator[str]:
    yield counted(len(seen.brokers), "broker")
    yield counted(len(seen.partitions), "partition")
    if seen.groups:
        yield counted(len(seen.groups), "group")
    if seen.disks:
        yield counted(len(seen.disks), "data directory", "data directories")
    if seen.archives:
        yield f"the archive of {counted(len(seen.archives), 'partition')}"
    if seen.certificates:
        yield counted(len(seen.certificates), "certificate")
