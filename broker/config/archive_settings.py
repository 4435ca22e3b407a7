"""The broker's settings of the archive: where it is, and how this broker copies to it and reads from it.

Kafka's names where Kafka has them (KIP-405); `archive.*` where it leaves the store to a plugin. `archive.options.NAME`
are the options of the store (broker/storage/object_stores.py). A value may be `${env:NAME}`, a variable of the
environment, or `${file:PATH:KEY}`, a line of a properties file, as Kafka's config providers write it: so a secret need
not stand in the broker's file.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from broker.errors import ConfigError
from broker.settings import Long, UpdateMode, at_least, between, read_properties_file, setting
from broker.storage.url_secrets import without_secrets

OPTIONS_PREFIX = "archive.options."
UNLIMITED = 2**63 - 1

_ELSEWHERE = re.compile(r"\$\{(?P<provider>env|file):(?P<place>[^}]+)\}")
_archive = partial(setting, group="archive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """Where the archive is, and how this broker copies to it, deletes there and reads from it."""

    remote_log_storage_system_enable: bool = _archive(
        False, "Whether this broker has an archive: topics with remote.storage.enable=true keep old segments there."
    )
    archive_url: str = _archive(
        "",
        "The archive's directory: s3://, gs://, abfs://, hdfs:// or file://. The same on all brokers of a cluster. "
        "archive.options.NAME are the options of the store.",
    )
    archive_threads: int = _archive(4, "Segments that this broker copies at the same time.", between(1, 64))
    remote_log_manager_copy_max_bytes_per_second: Long = _archive(
        UNLIMITED,
        "Most bytes per second that this broker copies to the archive.",
        at_least(1),
        UpdateMode.CLUSTER_WIDE,
    )
    archive_delete_delay_ms: Long = _archive(
        3_600_000,
        "How long the objects of deleted segments stay: longer than a reader uses a plan that names them.",
        at_least(0),
    )
    archive_orphan_ms: Long = _archive(
        86_400_000,
        "Objects that no manifest names are leftovers of interrupted copies from this age on: "
        "`pykafka log archive prune` deletes them.",
        at_least(3_600_000),  # a leader gives up a copy that it cannot commit in half of that
    )
    archive_deleted_topic_retention_ms: Long = _archive(
        7 * 24 * 3_600_000,
        "How long the archive of a deleted topic stays, for `pykafka log restore` to bring the topic back.",
        at_least(0),
    )
    archive_cluster_backup_interval_ms: Long = _archive(
        60_000,
        "How often the controller writes topics, settings, users, ACLs, quotas and offsets of groups to the archive, "
        "if they have changed: what a lost cluster loses of them.",
        at_least(100),
    )

    archive_cache_dir: str = _archive(
        "", "Directory for what is read from the archive; by default archive-cache in the first of log.dirs."
    )
    archive_cache_bytes: Long = _archive(
        1 << 30, "Most bytes of what is read from the archive that are kept on disk.", at_least(16 << 20)
    )
    remote_log_reader_threads: int = _archive(
        10, "Threads that read from the archive; each holds at most about 4 MiB in memory.", between(1, 256)
    )
    remote_fetch_max_wait_ms: int = _archive(
        500,
        "A fetch waits no longer than this for the archive; the answer is then without these partitions, and a later "
        "fetch has them.",
        at_least(1),
        UpdateMode.CLUSTER_WIDE,
    )
    remote_list_offsets_request_timeout_ms: Long = _archive(
        30_000,
        "ListOffsets waits no longer than this for the archive; then the partition gets REQUEST_TIMED_OUT.",
        at_least(1),
        UpdateMode.CLUSTER_WIDE,
    )

    def check_archive(self, options: Mapping[str, str]) -> None:
        """Raise ConfigError when one of the settings needs another one. `options` are those of the store."""
        shown = without_secrets(self.archive_url)
        if shown != self.archive_url:
            raise ConfigError(f"archive.url={shown}: clients see it, so put secrets into {OPTIONS_PREFIX}*")
        if self.archive_url and not self.remote_log_storage_system_enable:
            raise ConfigError(
                "archive.url is set, but remote.log.storage.system.enable is not true: set it, or remove archive.url"
            )
        if self.remote_log_storage_system_enable and not self.archive_url:
            raise ConfigError("remote.log.storage.system.enable=true: set archive.url, the archive's directory")
        if options and not self.archive_url:
            raise ConfigError(f"{OPTIONS_PREFIX}{min(options)} is set, but archive.url is not")


def absolute_url(url: str) -> str:
    """A local directory by its whole path: clients get the URL from the broker, and run in other directories."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme in ("file", "local"):
        return url if rest.startswith("/") else f"file://{os.path.abspath(rest)}"
    return url if colon else f"file://{os.path.abspath(url)}"


def archive_options(properties: dict[str, str]) -> dict[str, str]:
    """Take the `archive.options.*` out of `properties`: name → value, found where it points to. Raises ConfigError."""
    names = [key for key in properties if key.startswith(OPTIONS_PREFIX)]
    return {key.removeprefix(OPTIONS_PREFIX): _found(key, properties.pop(key)) for key in names}


def _found(key: str, text: str) -> str:
    elsewhere = _ELSEWHERE.fullmatch(text)
    if elsewhere is None:
        return text
    place = elsewhere["place"]
    if elsewhere["provider"] == "env":
        if place not in os.environ:
            raise ConfigError(f"{key}={text}: the environment has no variable {place}")
        return os.environ[place]
    path, _, name = place.rpartition(":")
    if not path:
        raise ConfigError(f"{key}={text}: write ${{file:PATH:KEY}}, with the name of a line of that properties file")
    found = read_properties_file(Path(path))
    if name not in found:
        raise ConfigError(f"{key}={text}: {path} has no line {name}=…")
    return found[name]
