"""Administration of a cluster: topics, settings, groups, transactions, data directories.

Called by the console, the demo and tests. `Admin` is its parts put together, one file each (admin_*.py); every method
blocks until it is done, tries again what may be tried again, and raises BrokerError with what the broker said.
"""

from __future__ import annotations

from broker.client.admin_configs import ConfigAdmin, ConfigEntry, ResourceType
from broker.client.admin_groups import GroupAdmin
from broker.client.admin_log_dirs import LogDirAdmin
from broker.client.admin_topics import NewTopic, TopicAdmin
from broker.client.admin_transactions import TransactionAdmin

__all__ = ["Admin", "ConfigEntry", "NewTopic", "ResourceType"]


class Admin(TopicAdmin, ConfigAdmin, GroupAdmin, TransactionAdmin, LogDirAdmin):
    """Administration of one cluster; Kafka's `Admin`, blocking. Thread-safe."""
