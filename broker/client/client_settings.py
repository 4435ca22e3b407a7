"""The client's settings under Kafka's property names, each declared once.

`ClientSettings.from_properties` reads them, for the console's `--config` files and for the connector's `kafka.*`
options. Instances are frozen and can be pickled, so a Spark driver sends them to its executors; passwords and keys are
in the pickle, but in no repr. Defaults are Kafka's, except where the description says why. For security the names of
Java's clients (PEM stores, `sasl.jaas.config`) and of librdkafka (`ssl.ca.location`, `sasl.username` …) are accepted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.client.sasl_settings import SaslSettings
from broker.client.tcp_connect import CANONICAL, USE_ALL, proxy_complaint
from broker.errors import ConfigError
from broker.settings import at_least, between, one_of, parse_properties, setting

if TYPE_CHECKING:
    from broker.security.login import Login

CLIENT, CONSUMER, PRODUCER = "client", "consumer", "producer"
CLASSIC = "classic"
_ONLY_CLASSIC: Final = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
"""What the coordinator decides with group.protocol=consumer."""

_client, _consumer, _producer = (partial(setting, group=group) for group in (CLIENT, CONSUMER, PRODUCER))

ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")

DEFAULT_PORT: Final = 9092

_ADDRESS: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/\s]+)(:(?P<port>\d+))?")
_INT_MAX: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings(SaslSettings):
    """Every key of a producer, consumer or admin client; `settings_of(ClientSettings)` lists them."""

    bootstrap_servers: tuple[str, ...] = _client(
        (), "host[:port],…: brokers to contact first. The default port is 9092."
    )
    client_id: str = _client("pykafka", "Name of this client in the brokers' logs.")
    request_timeout_ms: int = _client(30000, "Longest wait for a broker's answer.", at_least(1))
    default_api_timeout_ms: int = _client(60000, "Longest time for a call with all its retries.", at_least(0))
    socket_connection_setup_timeout_ms: int = _client(10000, "Longest time to connect.", at_least(1))
    client_dns_lookup: str = _client(
        USE_ALL,
        "use_all_dns_ips: all addresses of a broker's name are tried. resolve_canonical_bootstrap_servers_only: each "
        "address of bootstrap.servers is contacted by its canonical name, which Kerberos and certificates may need.",
        one_of((USE_ALL, CANONICAL)),
    )
    proxy_url: str | None = _client(
        None,
        "socks5://[user:password@]host:port, or http://… for CONNECT: the proxy to all brokers. It looks up their "
        "names, too. Needs pykafka-spark[proxy] (ours).",
        proxy_complaint,
        type="password",
    )
    retries: int = _client(_INT_MAX, "Attempts after the first. Time-outs usually end a call earlier.", at_least(0))
    retry_backoff_ms: int = _client(100, "Wait before the first retry. It doubles with each retry.", at_least(0))
    retry_backoff_max_ms: int = _client(1000, "Longest wait before a retry.", at_least(0))
    reconnect_backoff_ms: int = _client(
        50, "Wait before reconnecting to a broker. It doubles with each failure.", at_least(0)
    )
    reconnect_backoff_max_ms: int = _client(1000, "Longest wait before reconnecting.", at_least(0))
    metadata_max_age_ms: int = _client(300000, "Metadata is refreshed at this age.", at_least(0))
    statistics_interval_ms: int = _client(
        0, "Interval between calls of on_stats, as in librdkafka. 0: never.", at_least(0)
    )
    allow_auto_create_topics: bool = _consumer(
        False, "Let a read create a topic that does not exist. Kafka's default, true, hides misspelt names."
    )

    client_rack: str = _consumer(
        "", "Rack of this client. Brokers with replica.selector.class send it to a replica in that rack (KIP-392)."
    )
    fetch_min_bytes: int = _consumer(1, "The broker answers a fetch when it has so many bytes.", at_least(0))
    fetch_max_wait_ms: int = _consumer(500, "The broker answers a fetch after this time at the latest.", at_least(0))
    fetch_max_bytes: int = _consumer(52428800, "Most bytes in one fetch.", between(0, _INT_MAX))
    max_partition_fetch_bytes: int = _consumer(1048576, "Most bytes of one partition in a fetch.", between(0, _INT_MAX))
    check_crcs: bool = _consumer(True, "Verify the CRC of every batch.")
    isolation_level: str = _consumer(
        "read_uncommitted", "read_committed hides records of open and aborted transactions.", one_of(ISOLATION_LEVELS)
    )
    group_id: str = _consumer("", "Consumer group: its members share partitions and offsets.")
    group_protocol: str = _consumer(
        CLASSIC,
        "classic: a member of the group assigns the partitions. consumer: the coordinator does (KIP-848).",
        one_of((CLASSIC, "consumer")),
    )
    group_remote_assignor: str | None = _consumer(
        None, "The coordinator's assignor with group.protocol=consumer: uniform or range. Without: the broker's first."
    )
    group_instance_id: str = _consumer("", "Makes the member a static one (KIP-345).")
    session_timeout_ms: int = _consumer(
        45000, "A member that sends no heartbeat for this time is removed.", at_least(1)
    )
    heartbeat_interval_ms: int = _consumer(3000, "Interval between heartbeats.", at_least(1))
    max_poll_interval_ms: int = _consumer(
        300000, "A member that does not poll for this time leaves the group.", at_least(1)
    )
    max_poll_records: int = _consumer(500, "Most records that one poll returns.", at_least(1))
    auto_offset_reset: str = _consumer(
        "latest",
        "Where to begin if there is no committed offset, or its record was deleted.",
        one_of(("earliest", "latest", "none")),
    )
    enable_auto_commit: bool = _consumer(True, "Commit the offsets of records that poll returned.")
    auto_commit_interval_ms: int = _consumer(5000, "Interval between automatic commits.", at_least(0))
    partition_assignment_strategy: tuple[str, ...] = _consumer(
        ("range", "cooperative-sticky"),
        "Assignors, the preferred one first.",
        one_of(("range", "roundrobin", "sticky", "cooperative-sticky")),
    )

    acks: str = _producer(
        "all",
        "Which replicas must have a batch before it is acknowledged: 0 none, 1 the leader, all (-1) the ISR.",
        one_of(("0", "1", "-1", "all")),
    )
    compression_type: str = _producer(
        "none", "Codec of the batches.", one_of(("none", "gzip", "snappy", "lz4", "zstd"))
    )
    batch_size: int = _producer(16384, "A batch of this size is sent without waiting for linger.ms.", at_least(0))
    linger_ms: int = _producer(5, "How long a smaller batch waits for more records.", at_least(0))
    buffer_memory: int = _producer(
        33554432, "Bytes of records that are not sent yet. Above it send() waits.", at_least(1)
    )
    max_block_ms: int = _producer(60000, "Longest wait of send() for metadata or memory.", at_least(0))
    delivery_timeout_ms: int = _producer(
        120000, "A record that is not acknowledged after this time has failed.", at_least(0)
    )
    enable_idempotence: bool = _producer(True, "Retries write no record twice and keep the order (KIP-98).")
    max_request_size: int = _producer(1048576, "Largest record, and most bytes in one request.", at_least(1))
    max_in_flight_requests_per_connection: int = _producer(
        5, "Most unanswered requests per broker. At most 5 with idempotence.", at_least(1)
    )
    partitioner: str = _producer(
        "murmur2_random",
        "Partition of a record that names none. murmur2_random: by its key, or a new one for each batch. sticky: a new "
        "one for each batch. roundrobin: a new one for each record.",
        one_of(("murmur2_random", "sticky", "roundrobin")),
    )
    transactional_id: str = _producer(
        "", "Makes the producer transactional. Only one producer of an id can be active (KIP-98)."
    )
    transaction_timeout_ms: int = _producer(
        60000, "The coordinator aborts a transaction that is open for longer.", at_least(1)
    )

    def __post_init__(self) -> None:
        self.check_security()
        if self.proxy_url is not None and self.client_dns_lookup == CANONICAL:
            raise ConfigError(
                f"client.dns.lookup={CANONICAL} has no effect with proxy.url, where the proxy looks up names"
            )
        if self.enable_idempotence and self.max_in_flight_requests_per_connection > 5:
            raise ConfigError(
                f"max.in.flight.requests.per.connection={self.max_in_flight_requests_per_connection}: "
                "at most 5 with enable.idempotence=true"
            )
        if self.transactional_id and not self.enable_idempotence:
            raise ConfigError(f"transactional.id={self.transactional_id} needs enable.idempotence=true and acks=all")
        if self.group_id and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be below "
                f"session.timeout.ms={self.session_timeout_ms}; a third of it is usual"
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> ClientSettings:
        """Read Kafka properties; values may be text, numbers, booleans or lists. Raises ConfigError.

        `acks` below all without a word about `enable.idempotence` turns idempotence off, as in Kafka.
        """
        texts = {name: _as_text(value) for name, value in properties.items()}
        if "sasl.mechanisms" in texts:  # librdkafka's name
            texts.setdefault("sasl.mechanism", texts.pop("sasl.mechanisms"))
        if "group.protocol" in texts:
            texts["group.protocol"] = texts["group.protocol"].lower()
        refused = ("group.remote.assignor",) if texts.get("group.protocol", CLASSIC) == CLASSIC else _ONLY_CLASSIC
        if wrong := [name for name in refused if name in texts]:
            raise ConfigError(f"{wrong[0]} cannot be set with group.protocol={texts.get('group.protocol', CLASSIC)}")
        strategies = texts.get("partition.assignment.strategy")
        if strategies is not None:
            texts["partition.assignment.strategy"] = ",".join(_short_assignor(name) for name in strategies.split(","))
        settings = parse_properties(cls, texts)
        if settings.acks in ("0", "1") and settings.enable_idempotence:
            if "enable.idempotence" in texts:
                raise ConfigError(f"acks={settings.acks}: enable.idempotence=true needs acks=all")
            settings = dataclasses.replace(settings, enable_idempotence=False)
        parse_bootstrap(settings.bootstrap_servers)
        return settings

    @classmethod
    def of(
        cls,
        source: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        properties: Mapping[str, Any] | None = None,
    ) -> ClientSettings:
        """From whatever a caller has: "host:port,…", a list of addresses, properties, or settings as they are.

        `properties` go with an address. Raises ConfigError, also when no address is in either.
        """
        if isinstance(source, ClientSettings):
            settings = source
        elif isinstance(source, Mapping):
            settings = cls.from_properties({**source, **(properties or {})})
        else:
            servers = source if isinstance(source, str) else ",".join(source)
            given = {"bootstrap.servers": servers} if servers else {}
            settings = cls.from_properties({**(properties or {}), **given})
        if not settings.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing: name at least one broker as host or host:port")
        return settings

    @property
    def required_acks(self) -> int:
        """`acks` as the protocol has it: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    def login(self) -> Login | None:
        """None where the protocol asks for none. Raises ConfigError."""
        if not self.security_protocol.upper().startswith("SASL_"):
            return None
        from broker.client.logins import login_of

        first = parse_bootstrap(self.bootstrap_servers[:1])
        return login_of(self, first[0][0] if first else "")

    def check_security(self) -> None:
        """Raise ConfigError when settings contradict each other."""
        self.login()
        if bool(self.ssl_certificate_location) != bool(self.ssl_key_location):
            raise ConfigError("ssl.certificate.location and ssl.key.location go together: set both")


def isolation_id(level: str) -> int:
    """`isolation.level` as the protocol has it: 0 uncommitted, 1 committed. Raises ConfigError."""
    if level not in ISOLATION_LEVELS:
        raise ConfigError(f"isolation.level={level}: must be one of {', '.join(ISOLATION_LEVELS)}")
    return ISOLATION_LEVELS.index(level)


def parse_bootstrap(servers: tuple[str, ...]) -> list[tuple[str, int]]:
    """(host, port) of each `host`, `host:port`, `[ipv6]` or `[ipv6]:port`. Raises ConfigError.

    The port is 9092 if it is left out, as in librdkafka and kafka-python. Kafka's Java client requires it.
    """
    addresses = []
    for server in servers:
        match = _ADDRESS.fullmatch(server)
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ConfigError(f"bootstrap.servers={','.join(servers)}: {server!r} is not host or host:port")
        addresses.append((match["host"].strip("[]"), port))
    return addresses


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


def _short_assignor(name: str) -> str:
    """Kafka names assignors by class: `org.apache.kafka.clients.consumer.RangeAssignor` is our `range`."""
    short = name.strip().rpartition(".")[2].removesuffix("Assignor").lower()
    return "cooperative-sticky" if short == "cooperativesticky" else short
