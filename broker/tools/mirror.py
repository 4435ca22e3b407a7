"""`pykafka mirror`: copy topics and the offsets of groups to another cluster, exactly once (MirrorMaker 2).

Options have the names of MirrorMaker's settings. Ends with status 0 after Ctrl-C or SIGTERM, when what was copied is
committed.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Annotated, Any, Final

from broker.client.cluster import Cluster
from broker.errors import ConfigError
from broker.mirror.mirror import Mirror, MirrorStats
from broker.mirror.mirror_settings import CONFIG_PROPERTIES_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE, MirrorSettings
from broker.settings import read_properties_file
from broker.tools.client_options import JsonOutput, client_settings, flag, option, with_options
from broker.tools.interrupt import Interrupt
from broker.tools.logging_setup import TEXT, TextFormatter
from broker.tools.output import counted, report

logger = logging.getLogger("pykafka.mirror")

_SOURCE_DEFAULTS: Final = {"max.partition.fetch.bytes": 4 << 20, "fetch.max.bytes": 16 << 20}
_TARGET_DEFAULTS: Final = {
    "max.request.size": 4 << 20,
    "retry.backoff.ms": 20,  # Kafka answers CONCURRENT_TRANSACTIONS until the last markers are written: a few ms
    "delivery.timeout.ms": 30_000,  # then the mirror begins again; until then it does not notice Ctrl-C
    "default.api.timeout.ms": 30_000,
}
_STATUS_S: Final = 10.0
_LISTS: Final = ("topics", "topics_exclude", "groups", "groups_exclude", "config_properties_exclude")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorOptions:
    source: Annotated[
        str | None, option("Brokers of the source. Or set it in --source-config.", "HOST[:PORT],…", "--from")
    ] = None
    target: Annotated[
        str | None, option("Brokers of the target. Or set it in --target-config.", "HOST[:PORT],…", "--to")
    ] = None
    topics: Annotated[str, option("Topics to mirror: names or regular expressions.", "NAME,…")] = ""
    topics_exclude: Annotated[str, option("Topics to leave out: names or regular expressions.", "NAME,…")] = ",".join(
        TOPICS_EXCLUDE
    )
    once: Annotated[bool, flag("Copy what there is now, then end. Otherwise go on until Ctrl-C.", "--once")] = False
    groups: Annotated[str, option("Groups whose offsets are mirrored: names or regular expressions.", "NAME,…")] = ".*"
    groups_exclude: Annotated[str, option("Groups to leave out: names or regular expressions.", "NAME,…")] = ",".join(
        GROUPS_EXCLUDE
    )
    sync_group_offsets: Annotated[bool, flag("Commit translated offsets for groups without members on the target.")] = (
        True
    )
    replication_policy: Annotated[
        str, option("Names on the target. identity: as on the source. default: source alias, separator, name.", "NAME")
    ] = "identity"
    replication_policy_separator: Annotated[str, option("Between alias and name.", "TEXT")] = (
        MirrorSettings.replication_policy_separator
    )
    source_cluster_alias: Annotated[
        str, option("Name of the source.", "NAME", "--source-alias", "--source-cluster-alias")
    ] = MirrorSettings.source_cluster_alias
    target_cluster_alias: Annotated[
        str, option("Name of the target.", "NAME", "--target-alias", "--target-cluster-alias")
    ] = MirrorSettings.target_cluster_alias
    replication_factor: Annotated[int, option("Replicas of new topics; -1: the target's default.", "N", min=-1)] = -1
    auto_offset_reset: Annotated[
        str, option("Where to begin with topics that are new to this mirror.", "earliest|latest")
    ] = "earliest"
    sync_topic_configs: Annotated[bool, flag("Keep the settings of topics equal.")] = True
    config_properties_exclude: Annotated[
        str, option("Settings of topics that are not copied: regular expressions.", "NAME,…")
    ] = ",".join(CONFIG_PROPERTIES_EXCLUDE)
    commit_interval_s: Annotated[
        float, option("How long a transaction collects records.", "SECONDS", "--commit-interval", min=0.01)
    ] = MirrorSettings.commit_interval_s
    refresh_topics_interval_s: Annotated[
        float,
        option("How often to look for new topics and partitions.", "SECONDS", "--refresh-topics-interval", min=0.1),
    ] = MirrorSettings.refresh_topics_interval_s
    emit_checkpoints_interval_s: Annotated[
        float, option("How often to mirror the offsets of groups.", "SECONDS", "--emit-checkpoints-interval", min=0.1)
    ] = MirrorSettings.emit_checkpoints_interval_s
    source_config: Annotated[Path | None, option("Properties file of the client of the source.", "FILE")] = None
    target_config: Annotated[Path | None, option("Properties file of the client of the target.", "FILE")] = None
    as_json: JsonOutput = False

    @property
    def settings(self) -> MirrorSettings:
        """Raises ConfigError."""
        known = {field.name for field in dataclasses.fields(MirrorSettings)}
        given = {name: value for name, value in vars(self).items() if name in known}
        return MirrorSettings(**given | {name: _names(given[name]) for name in _LISTS})


@with_options
def mirror(options: MirrorOptions) -> None:
    """Copy topics and the offsets of groups from one cluster to another, exactly once.

    \b
    Examples:
      pykafka mirror --from old:9092 --to new:9092 --topics 'orders,clicks-.*'
      pykafka mirror --from old:9092 --to new:9092 --topics '.*' --once
    """
    settings = options.settings
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter(TEXT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    interrupt = Interrupt()
    with (
        _cluster("--from", options.source, options.source_config, _SOURCE_DEFAULTS) as from_cluster,
        _cluster("--to", options.target, options.target_config, _TARGET_DEFAULTS) as to_cluster,
    ):
        running = Mirror(from_cluster, to_cluster, settings)
        status = _Status(running.stats)
        running.run(lambda: status.due() or interrupt.came_within(0), once=options.once)
    stats, seconds = running.stats, status.seconds
    copied = f"{counted(stats.records, 'record')} ({stats.bytes / 1e6:,.1f} MB) of {counted(stats.topics, 'topic')}"
    report(
        options.as_json,
        f"Mirrored {copied} in {seconds:.1f} s, in {counted(stats.transactions, 'transaction')}; "
        f"moved {counted(stats.groups, 'group')}; lag {stats.lag}.",
        {**dataclasses.asdict(stats), "seconds": round(seconds, 3)},
    )


class _Status:
    """Logs how it goes, every ten seconds in which something was copied."""

    def __init__(self, stats: MirrorStats) -> None:
        self._stats = stats
        self._started = self._last = time.monotonic()
        self._seen = 0, 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def due(self) -> bool:
        """Log if it is time. Always False."""
        now = time.monotonic()
        if now - self._last >= _STATUS_S:
            records, size = self._stats.records - self._seen[0], self._stats.bytes - self._seen[1]
            if records:
                rate = size / 1e6 / (now - self._last)
                logger.info("%d records, %.1f MB/s, lag %d", records, rate, self._stats.lag)
            self._last, self._seen = now, (self._stats.records, self._stats.bytes)
        return False


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _cluster(option: str, bootstrap: str | None, file: Path | None, defaults: dict[str, Any]) -> Cluster:
    """A client, with `defaults` for what the file does not set. Raises ConfigError without an address."""
    given = read_properties_file(file) if file else {}
    if not bootstrap and "bootstrap.servers" not in given:
        name = "source" if option == "--from" else "target"
        raise ConfigError(f"{option}: name the brokers of the {name} as HOST:PORT, or in --{name}-config")
    return Cluster(
        client_settings(bootstrap, file, {key: value for key, value in defaults.items() if key not in given})
    )
