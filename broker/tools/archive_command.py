"""`pykafka log archive`: how far the archives of topics are; check them, and delete what interrupted copies left.

`status` asks the brokers. `verify` and `prune` read the store itself, with the options of the store that this process
has; a broker only tells them where the archive is, so without one they need `--archive`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from broker.client.admin import Admin
from broker.client.archive_status import archive_statuses
from broker.config.archive_settings import OPTIONS_PREFIX, ArchiveSettings, archive_options
from broker.errors import ConfigError, PykafkaError
from broker.protocol.described_config import ResourceType
from broker.storage.url_secrets import text_without_secrets
from broker.tools.client_options import (
    BootstrapServer,
    ConfigFile,
    JsonOutput,
    admin_command,
    administration,
    complete_topics,
    flag,
    option,
    parse_pairs,
    with_options,
)
from broker.tools.output import checking, counted, end_check, note, print_json, print_lines, print_rows, progress_bar
from broker.verdict import Verdict

if TYPE_CHECKING:
    from broker.archive.contents import TopicContents
    from broker.archive.verify import Report
    from broker.storage.storage import Storage

app = typer.Typer(
    help="Show how far the archives of topics are; verify them, and delete leftovers.\n\n\b\nExamples:\n"
    "  pykafka log archive status\n"
    "  pykafka log archive verify --deep",
    no_args_is_help=True,
)

ArchiveOptions = Annotated[
    list[str] | None,
    option(
        "An option of the store, as archive.options.NAME of the brokers; may be repeated. A value may be "
        "${env:VARIABLE} or ${file:PATH:KEY}.",
        "NAME=VALUE",
    ),
]
Topics = Annotated[
    list[str] | None,
    option("Only this topic; may be repeated.", "NAME", "--topic", "-t", autocompletion=complete_topics),
]
_ORPHAN_MS = "archive.orphan.ms"


@dataclass(kw_only=True)
class StoreOptions:
    """Where the archive is, and how this process gets to it."""

    archive: Annotated[
        str | None, option("The archive: archive.url of the brokers. Default: a broker is asked for it.", "URL")
    ] = None
    archive_option: ArchiveOptions = None
    topic: Topics = None
    as_json: JsonOutput = False
    bootstrap_server: BootstrapServer = None
    config_file: ConfigFile = None


@dataclass(frozen=True)
class _Archive:
    storage: Storage
    orphan_ms: int
    topics: list[TopicContents]
    """Those that the options name, or that are not deleted."""
    is_empty: bool
    """Whether there is no topic at all, as in a place that is no archive."""


@admin_command(app)
def status(admin: Admin, topic: Topics = None, as_json: JsonOutput = False) -> None:
    """Show per partition what is archived, what is local, how much waits to be copied, and why.

    START and LOCAL-START are the first offsets that count and that are on the leader's disk; ARCHIVED-END and END are
    the offsets after the last ones. BEHIND is what is closed and not archived yet, in bytes. Of a Kafka with tiered
    storage only the offsets are known.

    \b
    Examples:
      pykafka log archive status
      pykafka log archive status --topic flights --json
    """
    names = (
        *("topic", "partition", "start", "archivedEnd", "localStart", "end"),
        *("archivedBytes", "behind", "behindSegments", "problem"),
    )
    rows = [(*tp, *rest) for tp, *rest in archive_statuses(admin, topic or ())]
    print_rows(names, rows, as_json, nothing="No topic has an archive (remote.storage.enable=true).")


@app.command()
@with_options
def verify(
    deep: Annotated[bool, flag("Read all objects: the CRC of each record batch and file.", "--deep")] = False,
    *,
    options: StoreOptions,
) -> None:
    """Check that all that the archive promises is in the store; the exit status is 1 if anything is wrong, and 3 if the
    store did not give everything, or has no topic.

    Finds objects that are missing, short or torn, holes and overlaps between segments, leader epochs in a wrong order,
    gaps between the entries of a manifest, and orphans: old objects that no manifest names. Without --topic: all topics
    that are not deleted. Brokers may run meanwhile.

    \b
    Examples:
      pykafka log archive verify
      pykafka log archive verify --topic flights --deep
      pykafka log archive verify --archive s3://bucket/kafka --archive-option region=eu-central-1
    """
    from broker.archive.verify import verify_partition

    with checking(options.as_json), _opened(options) as archive:
        if archive.is_empty:
            raise PykafkaError(f"the archive {archive.storage.shown} holds no topic")
        places = [(topic.shown, place) for topic in archive.topics for place in topic.places]
        reports = []
        with progress_bar("checking", len(places)) as advance:
            for number, (name, place) in enumerate(places):
                advance(number, f"{name}-{place.partition}")
                now_ms = time.time_ns() // 1_000_000
                report = verify_partition(archive.storage, place, deep=deep, orphan_ms=archive.orphan_ms, now_ms=now_ms)
                reports.append((name, report))
    if options.as_json:
        print_json([_report_document(name, report) for name, report in reports])
    else:
        _print_reports(reports)
    end_check(Verdict.of_all(report.verdict for _, report in reports))


def _report_document(name: str, report: Report) -> dict[str, object]:
    return {
        "topic": name,
        "partition": report.place.partition,
        "start": report.manifest.start,
        "end": report.manifest.end,
        "segments": len(report.manifest.segments),
        "bytes": report.manifest.size,
        "unnamed": report.unnamed,
        "problems": [problem._asdict() for problem in report.problems],
        "unread": report.unread,
        "verdict": report.verdict,
    }


def _print_reports(reports: list[tuple[str, Report]]) -> None:
    problems = [problem for _, report in reports for problem in report.problems]
    print_lines(f"{problem.path}: {problem.kind}: {problem.text}" for problem in problems)
    manifests = [report.manifest for _, report in reports]
    segments, size = sum(len(one.segments) for one in manifests), sum(one.size for one in manifests)
    unnamed = sum(report.unnamed for _, report in reports)
    checked = f"{counted(len(reports), 'partition')}, {counted(segments, 'segment')}, {size:,} bytes"
    unread = [text for _, report in reports for text in report.unread]
    print_lines(f"{Verdict.UNKNOWN}: {text}" for text in unread)
    more = f" The store did not give {counted(len(unread), 'path')}: what is there is unknown." if unread else ""
    print_lines([f"{counted(len(problems), 'problem')} in {checked}.{more}"])
    if unnamed:
        note(f"{counted(unnamed, 'object')} of copies that are under way, or of segments that were deleted.")


@app.command()
@with_options
def prune(
    dry_run: Annotated[bool, flag("Say what would be deleted, and delete nothing.", "--dry-run")] = False,
    *,
    options: StoreOptions,
) -> None:
    """Delete what interrupted copies left: objects that no manifest names and that are older than archive.orphan.ms.

    A partition without a manifest, or with a damaged one, is left alone.

    \b
    Examples:
      pykafka log archive prune --dry-run
      pykafka log archive prune --topic flights
    """
    from broker.archive.prune import delete, leftovers

    rows, failed = [], []
    with _opened(options) as archive:
        before_ms = time.time_ns() // 1_000_000 - archive.orphan_ms
        for topic in archive.topics:
            for place in topic.places:
                try:
                    found = leftovers(archive.storage, place, before_ms)
                    if not dry_run:
                        delete(archive.storage, found.orphans)
                except (PykafkaError, OSError) as error:
                    failed.append(f"{topic.shown}-{place.partition}: {text_without_secrets(str(error))}")
                    continue
                rows += [(topic.shown, place.partition, *orphan) for orphan in found.orphans]
                if not found.has_manifest and found.young:
                    note(f"{topic.shown}-{place.partition} has objects, but no manifest: nothing is deleted there")
    verb = "Would delete" if dry_run else "Deleted"
    print_rows(("topic", "partition", "path", "bytes"), rows, options.as_json)
    note(f"{verb} {counted(len(rows), 'object')}, {sum(row[3] for row in rows):,} bytes.")
    if failed:
        raise PykafkaError("; ".join(failed))


# --- where the archive is -------------------------------------------------------------------------------------------


@contextmanager
def _opened(options: StoreOptions) -> Iterator[_Archive]:
    """The archive and the topics in it that the options name. Raises PykafkaError for errors of the store."""
    # fsspec behind them, which the other commands of `log` have no use for
    from broker.archive.contents import archived_topics
    from broker.storage.storage import open_storage

    url, orphan_ms, names = options.archive, ArchiveSettings().archive_orphan_ms, dict[uuid.UUID | None, str]()
    if url is None:
        with administration(options.bootstrap_server, options.config_file) as admin:
            url, orphan_ms = _told_by_broker(admin)
            names = {topic.topic_id: name for name, topic in admin.describe_topics().items()}
    storage = open_storage(url, store_options(options.archive_option))
    try:
        found = [
            replace(topic, name=topic.name or names.get(topic.topic_id)) for topic in archived_topics(storage)
        ]  # topic.json comes about a minute after the topic
        yield _Archive(storage, orphan_ms, _chosen(found, options.topic, storage), not found)
    except OSError as error:
        hint = "; keys come from --archive-option or the environment" if isinstance(error, PermissionError) else ""
        raise PykafkaError(f"the archive {storage.shown}: {text_without_secrets(str(error))}{hint}") from error


def _chosen(found: list[TopicContents], names: list[str] | None, storage: Storage) -> list[TopicContents]:
    if not names:
        return [topic for topic in found if not topic.is_deleted]
    known = sorted({topic.shown for topic in found})
    for name in names:
        if name not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"--topic {name}: the archive {storage.shown} has no such topic; it has {has}")
    return [topic for topic in found if topic.shown in names]


def _told_by_broker(admin: Admin) -> tuple[str, int]:
    node = min(admin.cluster.brokers(), key=lambda node: node.id)
    entries = admin.describe_configs(ResourceType.BROKER, str(node.id), ["archive.url", _ORPHAN_MS])
    url = entries["archive.url"].value if "archive.url" in entries else ""
    if not url:
        raise ConfigError(f"broker {node.id} has no archive (archive.url); say where one is by --archive")
    return url, int(entries[_ORPHAN_MS].value or 0)


def store_options(pairs: list[str] | None) -> dict[str, str]:
    """The options of the store that `--archive-option` gives."""
    given = parse_pairs(pairs, "--archive-option")
    return archive_options({f"{OPTIONS_PREFIX}{name}": value for name, value in given.items()})
