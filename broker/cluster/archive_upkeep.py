"""What the controller keeps in the archive of its cluster, beside the records that the leaders copy there.

Once in `archive.cluster.backup.interval.ms` it writes a backup of the cluster's metadata if they have changed, and
`topic.json` of each topic with an archive whose name, partitions or settings have. A topic that was deleted gets a
`deleted.json`; its objects are deleted `archive.deleted.topic.retention.ms` after that. Until then `pykafka log
restore` brings it back.

Every broker runs one, which acts while its broker is the controller. An earlier controller that still runs overwrites
nothing (cluster_backup.py), and deletes nothing of a topic that lives: what is erased was marked in ZooKeeper first.
The store is asked in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from broker.clock import Clock
from broker.cluster.cluster_backup import BackupFiles, ClusterBackup, GroupOffsets, read_backup
from broker.cluster.deleted_archives import DeletedArchives, topic_document, topic_path
from broker.cluster.metadata_cache import MetadataCache
from broker.config.archive_settings import ArchiveSettings
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import Topic
from broker.storage.url_secrets import text_without_secrets
from broker.zookeeper.archive_nodes import ArchiveNodes, archive_id_of, may_have_archive, owned_archive
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerElection, ControllerEpoch
from broker.zookeeper.metadata_store import MetadataStore

if TYPE_CHECKING:
    from broker.cluster.group_backup import GroupBackup
    from broker.storage.storage import Storage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SPACING_S = 1.0
"""Between two looks at the topics."""


class ArchiveUpkeep:
    """Lives on the event loop. Run `run` as a task, and call `close` after it has ended."""

    def __init__(
        self,
        storage: Storage,
        zk: MetadataStore,
        store: ClusterStore,
        topics: MetadataCache,
        election: ControllerElection,
        make_groups: Callable[[GroupOffsets], GroupBackup],
        settings: ArchiveSettings,
        clock: Clock,
    ) -> None:
        """`make_groups(known)` makes what asks for the offsets of groups, `known` those of the last backup."""
        self._storage = storage
        self._zk = zk
        self._store = store
        self._topics = topics
        self._election = election
        self._make_groups = make_groups
        self._settings = settings
        self._clock = clock
        self._files = BackupFiles(storage, topics.metadata.cluster_id)
        self._deleted = DeletedArchives(storage, topics.metadata.cluster_id, ArchiveNodes(zk))
        self._thread = ThreadPoolExecutor(1, "archive-upkeep")
        self._epoch: ControllerEpoch | None = None
        """The one in which this broker acts; None before it has looked once."""
        self._groups: GroupBackup | None = None
        self._number = 0
        """Of the last backup in the archive."""
        self._written: ClusterBackup | None = None
        """The last backup that this broker has written in its epoch."""
        self._topic_documents: dict[str, bytes] = {}
        """Path → what this broker has written there."""
        self._changed = asyncio.Event()
        self.failures: dict[str, str] = {}
        """What cannot be done now → why."""

    async def run(self) -> None:
        """Look, for ever. What changes of topics is told the archive within seconds: a topic that was deleted in its
        first minute can be restored by its name, too."""
        self._topics.add_change_listener(self._note_change)
        self._topics.add_deletion_listener(self._note_deletion)
        loop = asyncio.get_running_loop()
        while True:
            await self.look()
            due = loop.time() + self._settings.archive_cluster_backup_interval_ms / 1000
            while (left := due - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
                    self._changed.clear()
                    await self._look_at_topics()
                    await asyncio.sleep(_SPACING_S)

    def _note_change(self, names: Collection[str]) -> None:
        topics = self._topics.metadata.topics
        if any(name in topics and may_have_archive(topics[name].config) for name in names):
            self._changed.set()

    async def _note_deletion(self, partitions: Sequence[TopicPartition]) -> None:
        self._changed.set()

    def close(self) -> None:
        """Begin nothing more; what is being written ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def look(self) -> None:
        """Do what is due, if this broker is the controller. A failure is logged once, and tried again at the next."""
        epoch = self._election.epoch
        if epoch is None:
            self._epoch = self._written = None
            self.failures.clear()
            return
        await self._try("back up the cluster's metadata", self._back_up(epoch))
        await self._look_at_topics()

    async def _look_at_topics(self) -> None:
        if self._election.epoch is not None:
            await self._try("write topic.json", self._in_thread(self._write_topics))
            await self._try("delete the archives of deleted topics", self._in_thread(self._look_at_deleted))

    @property
    def problem(self) -> str:
        """What cannot be done now, and why; empty while all can, and while another broker is the controller."""
        return "; ".join(f"cannot {what}: {why}" for what, why in self.failures.items())

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
            if self.failures.pop(what, None):
                logger.info("the archive answers again: it can %s", what)
        except Exception as error:  # of whatever library is behind the storage
            text = text_without_secrets(str(error)) or type(error).__name__
            if self.failures.get(what) != text:
                logger.warning("cannot %s, trying again: %s", what, text)
            self.failures[what] = text

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    # --- the backup

    async def _back_up(self, epoch: ControllerEpoch) -> None:
        if self._epoch != epoch or self._groups is None:
            self._number, last = await self._in_thread(self._files.newest)
            if last is not None and last.controller_epoch > epoch.epoch:  # most likely it was deposed
                raise PykafkaError(
                    f"the archive has a backup of controller epoch {last.controller_epoch}, and this is the controller "
                    f"of epoch {epoch.epoch}: another cluster with the same id writes there, or this one was deposed"
                )
            self._groups = self._make_groups(last.offsets if last else {})
            self._written = None
            self._topic_documents.clear()
            self._epoch = epoch
        offsets = await self._groups.read()
        metadata = self._topics.metadata
        backup = await self._store(read_backup, self._zk, metadata, epoch.epoch, self._clock.now_ms(), offsets)
        if self._written is None or self._written.content != backup.content:
            await self._in_thread(self._write, backup)

    def _write(self, backup: ClusterBackup) -> None:
        """Add a backup behind all there are. Nothing is written after one of a later controller."""
        while True:
            try:
                self._files.create(self._number + 1, backup)
            except FileExistsError:
                self._number, newest = self._files.newest()
                if newest is not None and newest.controller_epoch > backup.controller_epoch:
                    self._epoch = None
                    return
                if newest != backup:
                    continue  # an earlier controller has written one
            else:
                self._number += 1
            self._written = backup
            self._files.delete_old()
            return

    # --- topics

    def _write_topics(self) -> None:
        """`topic.json` of each topic with an archive, where it has changed. It is for people and for a restore by name,
        so a stale one does no harm."""
        cluster_id = self._topics.metadata.cluster_id
        for topic in self._topics.metadata.topics.values():
            archive_id = archive_id_of(topic.topic_id, topic.config)
            if archive_id is None:
                continue
            path, document = topic_path(cluster_id, archive_id), _document(topic)
            if self._topic_documents.get(path) != document:
                with self._storage.open_output(path) as file:
                    file.write(document)
                self._deleted.lives(archive_id)
                self._topic_documents[path] = document

    def _look_at_deleted(self) -> None:
        topics = self._topics.metadata.topics.values()
        live = {owned_archive(topic.topic_id, topic.config) for topic in topics}
        live |= {topic.topic_id for topic in topics}
        now_ms = self._clock.now_ms()
        self._deleted.look(live, now_ms - self._settings.archive_deleted_topic_retention_ms)


def _document(topic: Topic) -> bytes:
    return topic_document(topic.topic_id, topic.name, len(topic.partitions), topic.config)
