"""Listeners and connections: buffers, limits, idle time."""

from __future__ import annotations

import dataclasses

from broker.settings import UpdateMode, at_least, setting

__all__ = ["NetworkSettings"]

SOCKET = "socket"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """A part of `BrokerConfig`."""

    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", -1, "SO_SNDBUF of client sockets; -1 leaves it to the OS.", group=SOCKET
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes", -1, "SO_RCVBUF of client sockets; -1 leaves it to the OS.", group=SOCKET
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        104857600,
        "A larger request closes its connection.",
        group=SOCKET,
        check=at_least(1),
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        600000,
        "Connections idle for longer are closed.",
        group=SOCKET,
        check=at_least(1),
        type="long",
    )
    socket_request_receive_timeout_ms: int = setting(
        "socket.request.receive.timeout.ms",
        60000,
        "A request that takes longer to arrive, and comes with less than 100 KB a second, closes its connection.",
        group=SOCKET,
        check=at_least(1),
        type="long",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        536870912,
        "Memory of all requests being received or waiting; above it connections are read from one after another. "
        "-1 is no limit (Kafka's default).",
        group=SOCKET,
        check=at_least(-1),
        type="long",
    )
    max_connections: int = setting(
        "max.connections",
        2147483647,
        "Connections taken in all; one more is closed at once.",
        group=SOCKET,
        check=at_least(0),
        update=UpdateMode.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        "max.connections.per.ip.overrides",
        (),
        "address:count,… that go before max.connections.per.ip.",
        group=SOCKET,
        type="string",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        2147483647,
        "Connections taken from one address.",
        group=SOCKET,
        check=at_least(0),
        update=UpdateMode.CLUSTER_WIDE,
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        2000,
        "Most partitions in one answer to DescribeTopicPartitions.",
        group=SOCKET,
        check=at_least(1),
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 57671680, "Most bytes in one fetch response.", group=SOCKET, check=at_least(1024)
    )
