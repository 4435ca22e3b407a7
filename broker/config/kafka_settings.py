"""Settings of an Apache Kafka `server.properties` that are none of ours: which mean nothing here, and which would.

Called by broker_config.py. What tunes threads, caches and caretakers of Kafka's processes, its metrics, KRaft's log,
or features that a client can tell are missing, is left out with one line in the log. A setting that protects, limits
or keeps something is refused: a broker that starts without it would not do what its operator relies on. Source of the
names: the configuration classes of Kafka 0.10 to 4.0, and the files that Apache and Confluent ship.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

IGNORED: Final = (
    # threads, queues and buffers
    "num.network.threads", "num.io.threads", "num.recovery.threads.per.data.dir", "background.threads",
    "num.replica.fetchers", "num.replica.alter.log.dirs.threads", "queued.max.requests", "socket.listen.backlog.size",
    "replica.socket.receive.buffer.bytes", "log.cleaner.threads", "log.cleaner.dedupe.buffer.load.factor",
    "log.cleaner.io.buffer.size", "log.cleaner.io.buffer.load.factor", "*.purgatory.purge.interval.requests",
    "offsets.load.buffer.size", "transaction.state.log.load.buffer.size", "group.coordinator.threads",
    "group.coordinator.append.linger.ms", "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.offset.checkpoint.interval.ms", "log.flush.start.offset.checkpoint.interval.ms",
    "producer.id.expiration.check.interval.ms", "server.max.startup.time.ms", "broker.id.generation.enable",
    "reserved.broker.max.id",
    # how brokers and controllers talk to each other
    "controlled.shutdown.max.retries", "controlled.shutdown.retry.backoff.ms", "controller.socket.timeout.ms",
    "inter.broker.protocol.version", "log.message.format.version", "log.message.downconversion.enable",
    "offsets.commit.timeout.ms", "offsets.commit.required.acks", "offsets.topic.compression.codec",
    "zookeeper.connection.timeout.ms", "zookeeper.sync.time.ms", "zookeeper.max.in.flight.requests",
    # KRaft
    "process.roles", "controller.quorum.*", "controller.listener.names", "metadata.log.*", "metadata.max.*",
    "broker.heartbeat.interval.ms", "broker.session.timeout.ms", "initial.broker.registration.timeout.ms",
    "early.start.listeners", "sasl.mechanism.controller.protocol", "controller.performance.*",
    "unstable.api.versions.enable", "unstable.feature.versions.enable", "log.dir.failure.timeout.ms",
    "eligible.leader.replicas.enable", "unclean.leader.election.interval.ms", "raft.*",
    # what is not declared here of groups of KIP-848 and share groups; streams groups, client metrics
    "group.consumer.*", "group.share.*", "share.*", "group.streams.*", "group.coordinator.new.enable",
    "group.coordinator.rebalance.protocols", "telemetry.max.bytes",
    # the plugins, threads and caches of tiered storage; moves between log directories
    "remote.log.storage.manager.*", "remote.log.metadata.*", "remote.log.reader.max.*", "remote.log.index.*",
    "remote.log.manager.*pool.size", "remote.log.manager.task.*", "remote.log.manager.*.quota.window.*",
    "remote.log.manager.fetch.max.bytes.per.second", "rsm.config.*", "rlmm.config.*",
    "replica.alter.log.dirs.io.max.bytes.per.second", "alter.log.dirs.replication.quota.window.*",
    # metrics and the JVM
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "auto.include.jmx.reporter", "kafka.metrics.*", "kafka.csv.metrics.reporter.enabled", "ssl.protocol",
    "ssl.secure.random.implementation", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
    # logins of Java to a KDC, which the library does here
    "sasl.kerberos.kinit.cmd", "sasl.kerberos.ticket.renew.*", "sasl.kerberos.min.time.before.relogin",
    # Confluent's
    "confluent.support.*", "confluent.metrics.*", "confluent.license.*", "confluent.balancer.*",
    "confluent.telemetry.*", "confluent.reporters.*", "confluent.cluster.link.*", "confluent.tier.*",
    "confluent.transaction.logging.*", "confluent.command.topic.*", "confluent.license", "confluent.http.server.*",
    "confluent.security.event.logger.*", "confluent.durability.*", "confluent.metadata.topic.*",
)  # fmt: skip
"""Patterns of names that have no meaning here."""

SWITCHES: Final[Mapping[str, str]] = {
    "zookeeper.metadata.migration.enable": "false",
    "zookeeper.set.acl": "false",
    "zookeeper.ssl.client.enable": "false",
    "zookeeper.client.secure": "false",
}
"""Features that are not here, with the value that turns them off, which is ignored as well."""

_NO_JAVA: Final = "a class of Java cannot be loaded here"
_PLAIN_ZOOKEEPER: Final = "connections to ZooKeeper are not encrypted here"
_LISTENERS: Final = "set listeners and advertised.listeners"
REFUSED: Final[Mapping[str, str]] = {
    "zookeeper.metadata.migration.enable": "there is no KRaft here",
    "zookeeper.set.acl": "the nodes in ZooKeeper get no ACLs here",
    "zookeeper.ssl.*": _PLAIN_ZOOKEEPER,
    "zookeeper.client.*": _PLAIN_ZOOKEEPER,
    "zookeeper.clientcnxnsocket": _PLAIN_ZOOKEEPER,
    "principal.builder.class": f"{_NO_JAVA}; ssl.principal.mapping.rules maps names",
    "sasl.*callback.handler.class": _NO_JAVA,
    "sasl.login.class": _NO_JAVA,
    "ssl.engine.factory.class": _NO_JAVA,
    "ssl.provider": _NO_JAVA,
    "security.providers": _NO_JAVA,
    "create.topic.policy.class.name": _NO_JAVA,
    "alter.config.policy.class.name": _NO_JAVA,
    "client.quota.callback.class": _NO_JAVA,
    "password.encoder.*": "passwords are not encrypted in ZooKeeper here",
    "control.plane.listener.name": "brokers have one listener for all that they say to each other",
    "host.name": _LISTENERS,
    "port": _LISTENERS,
    "advertised.host.name": _LISTENERS,
    "advertised.port": _LISTENERS,
    "quota.producer.default": "set it with `pykafka quotas`, for the default client id",
    "quota.consumer.default": "set it with `pykafka quotas`, for the default client id",
    "log.message.timestamp.difference.max.ms": "set log.message.timestamp.before.max.ms and after.max.ms",
    "confluent.*": "it is of Confluent Server",
}
"""Pattern of names → why, and what to set instead."""


def is_ignored(name: str, value: str) -> bool:
    """Whether the setting has no meaning here."""
    if name in SWITCHES:
        return value.strip().lower() == SWITCHES[name]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in IGNORED)


def why_refused(name: str) -> str:
    """Why a setting of Kafka cannot be used here; empty for one that Kafka does not know either."""
    return next((why for pattern, why in REFUSED.items() if fnmatch.fnmatchcase(name, pattern)), "")
