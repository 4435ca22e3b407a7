"""What a broker that starts finds of its partitions in its log directories, and what it says of that in ZooKeeper.

The server calls `confirm`, `claim`, `load`, `rejoin` and `end`, in this order. Only a replica that may have all of its
records leads or stays in an ISR afterwards (`state_at_start`). A replica that had a log and has none is no new one:
without this, the mount point of a disk that is not mounted would lose its partitions without a word.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from broker.boot_id import are_those_of_last_start, may_have_lost_records, record_boot
from broker.cluster.leadership_handover import rejoin_partitions
from broker.log.log_config import LogConfig
from broker.log.log_directory import CLEAN_MARK
from broker.log.manager import LogManager
from broker.meta_properties import adopted, check_meta_properties, end_adoption, unconfirmed
from broker.protocol.topic_partition import TopicPartition, some_of
from broker.replica.replica_manager import stored_log_config
from broker.zookeeper.archive_nodes import archive_id_of
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import TopicRecord

logger = logging.getLogger(__name__)


class LocalReplicas:
    """The replicas in the directories of one broker. All methods block."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._topics: Mapping[str, TopicRecord] = {}
        self._adopted: Sequence[Path] = ()
        self._may_have_lost = False
        self._is_all_here = False
        """Whether a log that is in no directory, and in no checkpoint, never was."""

    @property
    def online(self) -> list[Path]:
        """The directories that can be used."""
        return [directory for directory in self._logs.directories if directory not in self._logs.failures]

    def confirm(self) -> None:
        """Lock the directories. Those that nobody has confirmed go offline (`unconfirmed`). Raises ConfigError."""
        for directory, reason in unconfirmed(self._logs.directories).items():
            self._logs.take_offline(directory, reason)
        self._logs.lock()

    def claim(self, broker_id: int, cluster_id: str, topics: Mapping[str, TopicRecord]) -> None:
        """Check that the directories belong to this broker and cluster, or are new. Raises ConfigError."""
        ids = {record.topic_id for record in topics.values()}
        unusable = check_meta_properties(
            self.online, broker_id, cluster_id, holds_ours=lambda directory: self._logs.holds_any(directory, ids)
        )
        for directory, reason in unusable.items():
            self._logs.take_offline(directory, reason)
        self._topics = topics

    def load(self, defaults: LogConfig, deleted_ids: Collection[uuid.UUID]) -> None:
        """Open the logs of all topics that `claim` was given. `deleted_ids`: topics whose deletion this broker may have
        missed. Raises ConfigError."""
        self._adopted = adopted(self.online)
        self._is_all_here = are_those_of_last_start(self.online, self._logs.directories)
        self._may_have_lost = may_have_lost_records(self.online, CLEAN_MARK)
        settings = {name: record.config for name, record in self._topics.items()}
        self._logs.load(
            lambda topic: stored_log_config(topic, settings.get(topic, {}), defaults),
            {name: record.topic_id for name, record in self._topics.items()},
            deleted_ids,
        )
        if self._adopted and self._logs.failures:
            logger.error("%s: no partition begins anew while another directory is offline", self._adopted[0])

    def rejoin(self, registry: Registry, broker_id: int) -> list[TopicPartition]:
        """Write the states of this broker's partitions; returns those that changed. Call it before it registers."""
        changed = rejoin_partitions(
            registry,
            broker_id,
            self._topics.values(),
            lambda tp: self._may_have_lost or self._logs.get(tp) is None,
            self._log_of,
        )
        if self._adopted and not self._logs.failures:
            anew = [tp for tp in changed if self._is_single(tp) and self._logs.get(tp) is None]
            if anew:
                archived = [tp for tp in anew if self._is_archived(tp)]
                empty = [tp for tp in anew if tp not in archived]
                text = "these partitions begin anew, %s, because their logs are gone and %s was adopted: %s"
                for where, those in (("empty", empty), ("where their archives end", archived)):
                    if those:
                        logger.warning(text, where, self._adopted[0], some_of(those))
        return changed

    def _is_archived(self, tp: TopicPartition) -> bool:
        record = self._topics[tp.topic]
        return archive_id_of(record.topic_id, record.config) is not None

    def _is_single(self, tp: TopicPartition) -> bool:
        return len(self._topics[tp.topic].assignment[tp.partition]) == 1

    def _log_of(self, tp: TopicPartition) -> dict[str, bool]:
        is_unsure = not self._is_all_here if self._is_single(tp) else self._may_have_lost
        return {
            "has_log": self._logs.get(tp) is not None,
            "is_offline": self._logs.may_be_offline(tp),
            "never_had_log": not is_unsure and not self._logs.may_have_had(tp),
            "loss_is_accepted": bool(self._adopted),
        }

    def record_boot(self) -> None:
        """Call it when `rejoin` is done."""
        record_boot(self.online, self._logs.directories)

    def end(self) -> None:
        """The partitions that begin anew have their logs: what was adopted is as any other directory from now on."""
        end_adoption(self._adopted)
