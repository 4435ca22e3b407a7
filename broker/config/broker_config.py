"""All broker settings, read from a properties file and overrides, and checked together.

The table in the documentation is tested against the declarations, and properties_file.py prints them. Topic settings
are in topic_settings.py; `topic_defaults` gives those that topics do not set.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.config.archive_settings import ArchiveSettings, absolute_url, archive_options
from broker.config.kafka_settings import is_ignored, why_refused
from broker.config.listener import Listener, parse_listeners, parse_protocol_map
from broker.config.security_settings import (
    LISTENER_PREFIX,
    InterBroker,
    ListenerSecurity,
    SecuritySettings,
    inter_broker,
    inter_broker_listener,
    listener_security,
)
from broker.config.setting_groups import (
    CleanerSettings,
    ControllerSettings,
    DelegationTokenSettings,
    GroupSettings,
    LogSettings,
    ObservabilitySettings,
    QuotaSettings,
    ReplicaSettings,
    ServerSettings,
    ShareCoordinatorSettings,
    TransactionSettings,
    ZooKeeperSettings,
)
from broker.config.topic_settings import default_keys
from broker.errors import ConfigError
from broker.security.http_credentials import Credentials
from broker.settings import parse_properties, read_properties_file, settings_of

logger = logging.getLogger(__name__)

CONNECTION_RATE = "max.connection.creation.rate"


def is_connection_rate_of_listener(key: str) -> bool:
    """Whether it is `listener.name.NAME.max.connection.creation.rate`."""
    return key.startswith(LISTENER_PREFIX) and key.partition(".name.")[2].partition(".")[2] == CONNECTION_RATE


def _translate_kraft(properties: dict[str, str]) -> None:
    """Settings of a broker with KRaft that have another name here: its id, and listeners that only controllers use.

    Raises ConfigError for what is no broker.
    """
    roles = _words(properties.get("process.roles", "broker"))
    if roles and "broker" not in roles:
        raise ConfigError(f"process.roles={properties['process.roles']}: there is no process here that is no broker")
    node_id = properties.pop("node.id", None)
    if node_id is not None and properties.setdefault("broker.id", node_id) != node_id:
        raise ConfigError(f"node.id={node_id} and broker.id={properties['broker.id']}: set one of them")
    controllers = {name.upper() for name in _words(properties.get("controller.listener.names", ""))}
    for key in ("listeners", "advertised.listeners"):
        kept = [
            address
            for address in _words(properties.get(key, ""))
            if address.partition("://")[0].upper() not in controllers
        ]
        if controllers and kept:
            properties[key] = ",".join(kept)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerConfig(
    ObservabilitySettings,
    ArchiveSettings,
    QuotaSettings,
    TransactionSettings,
    GroupSettings,
    ShareCoordinatorSettings,
    ControllerSettings,
    DelegationTokenSettings,
    ZooKeeperSettings,
    CleanerSettings,
    ReplicaSettings,
    LogSettings,
    SecuritySettings,
    ServerSettings,
):
    """`settings_of(BrokerConfig)` lists all keys with their docs, those of the last base class first."""

    named: frozenset[str] = dataclasses.field(default=frozenset(), repr=False, compare=False)
    """Keys that the file or an override sets; DescribeConfigs calls these static."""
    listener_overrides: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)
    """The keys `listener.name.<name>.<key>`; some are passwords."""
    archive_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, hash=False)
    """The options of the archive's store, `archive.options.<name>`; all are treated as passwords."""

    @classmethod
    def load(cls, path: Path | None = None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Settings of a properties file with `overrides` on top. Raises ConfigError."""
        properties = {**(read_properties_file(path) if path else {}), **(overrides or {})}
        if "log.dir" in properties:
            properties.setdefault("log.dirs", properties.pop("log.dir"))
        if "delegation.token.master.key" in properties:  # its name before Kafka 3
            properties.setdefault("delegation.token.secret.key", properties.pop("delegation.token.master.key"))
        _translate_kraft(properties)
        options = archive_options(properties)
        declared = settings_of(cls)
        ignored = [name for name, text in properties.items() if name not in declared and is_ignored(name, text)]
        if ignored:
            logger.info("ignored, as it has no meaning in pykafka: %s", ", ".join(ignored))
        for name in ignored:
            del properties[name]
        own = {key: properties.pop(key) for key in tuple(properties) if key.startswith(LISTENER_PREFIX)}
        config = dataclasses.replace(
            parse_properties(cls, properties, why_refused=why_refused),
            named=frozenset(properties),
            listener_overrides=own,
            archive_options=options,
        )
        if config.archive_url:
            config = dataclasses.replace(config, archive_url=absolute_url(config.archive_url))
        config.check_together()
        return config

    def check_together(self) -> None:
        """Raise ConfigError when settings contradict each other."""
        if not self.log_dirs:
            raise ConfigError("log.dirs: name at least one directory")
        if not self.listeners:
            raise ConfigError("listeners: name at least one, such as PLAINTEXT://127.0.0.1:9092")
        if self.standalone and self.zookeeper_connect:
            raise ConfigError(
                f"standalone=true and zookeeper.connect={self.zookeeper_connect}: set one of them; a standalone broker "
                "has no ZooKeeper"
            )
        self.zookeeper_login()
        if bool(self.metrics_auth_username) != bool(self.metrics_auth_password):
            raise ConfigError("metrics.auth.username and metrics.auth.password: set both or none")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError("group.min.session.timeout.ms is above group.max.session.timeout.ms")
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ConfigError("replica.fetch.wait.max.ms is above replica.lag.time.max.ms")
        self.check_archive(self.archive_options)
        names = {listener.name for listener in self.parsed_listeners()}
        for listener in self.parsed_advertised():
            if listener.name not in names:
                raise ConfigError(f"advertised.listeners={listener}: there is no listener {listener.name} in listeners")
        for key in self.listener_overrides:
            name = key[len(LISTENER_PREFIX) :].partition(".")[0]
            if name.upper() not in names:
                raise ConfigError(f"{key}: there is no listener {name.upper()} in listeners")
        self.listener_security()
        self.connection_rates()
        if self.inter_broker_listener_name or self.security_inter_broker_protocol:
            self.inter_broker()

    def metrics_credentials(self) -> Credentials:
        """Who may read /metrics; nobody has to log in where they are empty."""
        return Credentials(self.metrics_auth_username, self.metrics_auth_password or "", self.metrics_auth_token or "")

    def parsed_listeners(self) -> list[Listener]:
        """`listeners`. Raises ConfigError."""
        return parse_listeners(self.listeners, "listeners", parse_protocol_map(self.listener_security_protocol_map))

    def parsed_advertised(self) -> list[Listener]:
        """`advertised.listeners`, none when it is not set. Raises ConfigError."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return parse_listeners(self.advertised_listeners, "advertised.listeners", protocols)

    def listener_security(self) -> dict[str, ListenerSecurity]:
        """Security settings by listener name. Raises ConfigError."""
        overrides = {
            key: text for key, text in self.listener_overrides.items() if not is_connection_rate_of_listener(key)
        }
        return {listener.name: listener_security(self, listener, overrides) for listener in self.parsed_listeners()}

    def connection_rates(self) -> dict[str, int]:
        """The highest rate of new connections by listener name, of the listeners that have one. Raises ConfigError."""
        declared = settings_of(BrokerConfig)[CONNECTION_RATE]
        return {
            key[len(LISTENER_PREFIX) :].partition(".")[0].upper(): dataclasses.replace(declared, name=key).parse(text)
            for key, text in self.listener_overrides.items()
            if is_connection_rate_of_listener(key)
        }

    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves. Raises ConfigError."""
        return inter_broker_listener(self, self.parsed_listeners())

    def inter_broker(self) -> InterBroker:
        """How this broker talks to others. Raises ConfigError when it cannot.

        Without a setting that names the listener, only a broker that is not alone needs this.
        """
        found = inter_broker(self, self.listener_security())
        name = found.security.listener.name
        advertised = [listener.name for listener in self.parsed_advertised()]
        if advertised and name not in advertised:
            raise ConfigError(
                f"advertised.listeners does not have {name}, which brokers use among themselves: add it, or set "
                "inter.broker.listener.name to another one"
            )
        return found

    def topic_defaults(self) -> dict[str, str]:
        """The defaults of topics, by topic key."""
        declared = settings_of(BrokerConfig)
        found: dict[str, str] = {}
        for topic_key, synonyms in TOPIC_DEFAULT_KEYS.items():
            for name, factor in synonyms.items():
                value = getattr(self, declared[name].attribute)
                if value is not None:
                    found[topic_key] = declared[name].format(value if factor == 1 else value * factor)
                    break
        return found

    def describe(self) -> dict[str, str]:
        """All keys with their values as text."""
        return {s.name: s.format(getattr(self, s.attribute)) for s in settings_of(BrokerConfig).values()}


TOPIC_DEFAULT_KEYS: Final = default_keys(BrokerConfig)
