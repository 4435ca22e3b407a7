"""Reading `zookeeper.connect`."""

from __future__ import annotations

import socket

import pytest

from broker.errors import ConfigError
from broker.zookeeper.connect_string import ConnectString
from tests.support.free_ports import refused_port


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("localhost:2181", (("localhost", 2181),), ""),
        ("localhost", (("localhost", 2181),), ""),
        ("a:1,b:2", (("a", 1), ("b", 2)), ""),
        (" a:1 , b:2/kafka ", (("a", 1), ("b", 2)), "/kafka"),
        ("a:1/", (("a", 1),), ""),
        ("a:1/kafka/prod/", (("a", 1),), "/kafka/prod"),
        ("[::1]:2181/x", (("[::1]", 2181),), "/x"),
    ],
)
def test_a_connect_string_is_cut_into_servers_and_chroot(
    text: str, servers: tuple[tuple[str, int], ...], chroot: str
) -> None:
    assert ConnectString.parse(text) == ConnectString(servers, chroot)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no server"),
        ("/kafka", "names no server"),
        ("http://localhost:2181", "is not host:port"),
        ("localhost:port", "is not host:port"),
        ("a:1,,b:2", "is not host:port"),
        ("a b:1", "is not host:port"),
        ("localhost:0", "port 0 is not in"),
        ("localhost:65536", "port 65536 is not in"),
        ("a:1/kafka,b:2/kafka", "the chroot is given once"),
        ("a:1/kafka//x", "is not a ZooKeeper path"),
        ("a:1/../x", "is not a ZooKeeper path"),
    ],
)
def test_a_malformed_connect_string_is_refused_with_the_reason_and_the_right_form(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refusal:
        ConnectString.parse(text)
    assert f"zookeeper.connect={text}" in str(refusal.value)
    assert "expected host:port[,host:port…][/chroot]" in str(refusal.value)


def test_the_text_form_parses_to_the_same() -> None:
    parsed = ConnectString.parse("a:1,[::1]:2/x/y")
    assert ConnectString.parse(str(parsed)) == parsed


def test_diagnosis_tells_a_closed_port_from_a_silent_server_and_an_unknown_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, refused_port() as closed_port:
        open_port = silent.getsockname()[1]
        text = f"127.0.0.1:{open_port},127.0.0.1:{closed_port},no-such-host.invalid:1"
        diagnosis = ConnectString.parse(text).diagnose()
    assert f"127.0.0.1:{open_port}: accepts connections but gives no ZooKeeper session" in diagnosis
    assert f"127.0.0.1:{closed_port}: Connection refused" in diagnosis
    assert "no-such-host.invalid:1: the host name does not resolve" in diagnosis
