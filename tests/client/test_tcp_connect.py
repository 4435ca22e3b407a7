"""The way to a broker: all addresses of a name, names that lead elsewhere later, proxies, and addresses that brokers
advertise in vain. Loopback has many addresses: a broker listens on 127.0.0.1 only."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.producer import Producer
from broker.errors import ConfigError, ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.proxy_server import PASSWORD, ProxyServer

QUICK = {"default.api.timeout.ms": "0", "socket.connection.setup.timeout.ms": "2000"}
NAME = "kafka.test"


class Names:
    """What names stand for in this process; others are looked up as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.asked: list[str] = []
        look_up = socket.getaddrinfo

        def found(host: Any, port: Any, *more: Any, **others: Any) -> Any:
            self.asked.append(host)
            if host not in self.addresses:
                return look_up(host, port, *more, **others)
            return [row for ip in self.addresses[host] for row in look_up(ip, port, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyServer]:
    with ProxyServer() as server:
        yield server


def test_all_addresses_of_a_name_are_tried(own_broker: BrokerProcess, names: Names) -> None:
    for addresses in (["127.0.0.2", "127.0.0.1"], ["::1", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
        names.addresses[NAME] = addresses
        with Cluster(f"{NAME}:{own_broker.port}", QUICK) as cluster:
            assert cluster.brokers()


def test_an_address_where_somebody_else_hangs_up_is_passed(own_broker: BrokerProcess, names: Names) -> None:
    """As a load balancer does that has no broker behind it any more."""
    names.addresses[NAME] = ["127.0.0.3", "127.0.0.1"]
    with socket.create_server(("127.0.0.3", own_broker.port)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        gone = threading.Thread(target=hang_up)
        gone.start()
        with Cluster(f"{NAME}:{own_broker.port}", QUICK) as cluster:
            assert cluster.brokers()
        gone.join(60)


def test_the_error_names_the_addresses_that_were_tried(own_broker: BrokerProcess, names: Names) -> None:
    names.addresses[NAME] = ["127.0.0.2", "127.0.0.3"]
    with (
        Cluster(f"{NAME}:{own_broker.port}", QUICK) as cluster,
        pytest.raises(ConnectionFailed, match=r"kafka\.test:\d+: .*refused \(tried: 127\.0\.0\.2, 127\.0\.0\.3\)"),
    ):
        cluster.brokers()


def test_a_name_is_looked_up_for_each_connection(own_broker: BrokerProcess, names: Names) -> None:
    names.addresses[NAME] = ["127.0.0.2"]
    with Cluster(f"{NAME}:{own_broker.port}", QUICK) as cluster:
        with pytest.raises(ConnectionFailed):
            cluster.brokers()
        names.addresses[NAME] = ["127.0.0.1"]
        assert cluster.brokers()


def test_bootstrap_servers_are_contacted_by_their_canonical_names(
    own_broker: BrokerProcess, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    def canonical(ip: str) -> tuple[str, list[str], list[str]]:
        if ip != "127.0.0.1":
            raise socket.herror
        return "one.kafka.test", [], [ip]

    monkeypatch.setattr(socket, "gethostbyaddr", canonical)
    names.addresses |= {NAME: ["127.0.0.2", "127.0.0.1"], "one.kafka.test": ["127.0.0.1"]}
    lookup = {"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
    with Cluster(f"{NAME}:{own_broker.port}", {**QUICK, **lookup}) as cluster:
        assert cluster.any_connection().address == f"one.kafka.test:{own_broker.port}"
    assert "127.0.0.2" in names.asked, "an address without a name is contacted by its number"


# --- proxies


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_a_client_works_through_a_proxy_which_looks_up_the_names(
    own_broker: BrokerProcess, proxy: ProxyServer, names: Names, topic: str, scheme: str
) -> None:
    names.addresses["localhost"] = []  # so that only the proxy knows it
    given = {"bootstrap.servers": f"localhost:{own_broker.port}", "proxy.url": proxy.url(scheme)}
    with Cluster(own_broker.bootstrap) as direct, Producer({**given, "allow.auto.create.topics": "true"}) as producer:
        producer.send(topic, b"x" * 1_000_000, partition=0).result(60)
        tp = TopicPartition(topic, 0)
        with Cluster(given) as cluster, Fetcher(cluster, tp, max_bytes=2 << 20) as fetcher:
            assert list_offsets(cluster, {tp: LATEST}) == list_offsets(direct, {tp: LATEST})
            assert len(fetcher.fetch(0).records) > 1_000_000
    assert f"{scheme} 127.0.0.1" in proxy.log
    assert f"localhost:{own_broker.port}" in proxy.log


def test_a_proxy_that_refuses_is_named_without_its_password(own_broker: BrokerProcess, proxy: ProxyServer) -> None:
    with (
        Cluster(own_broker.bootstrap, {**QUICK, "proxy.url": proxy.url("socks5", "wrong-one")}) as cluster,
        pytest.raises(ConnectionFailed, match=rf"through the proxy socks5://127\.0\.0\.1:{proxy.port}") as caught,
    ):
        cluster.brokers()
    assert "wrong-one" not in str(caught.value)


def test_a_proxy_that_is_not_there_is_named() -> None:
    with (
        Cluster("kafka.invalid:9092", {**QUICK, "proxy.url": "http://127.0.0.1:1"}) as cluster,
        pytest.raises(ConnectionFailed, match=r"kafka\.invalid:9092 through the proxy http://127\.0\.0\.1:1 \(proxy"),
    ):
        cluster.brokers()


def test_the_password_of_a_proxy_is_shown_nowhere(proxy: ProxyServer) -> None:
    settings = ClientSettings.from_properties({"bootstrap.servers": "h", "proxy.url": proxy.url("socks5")})
    assert PASSWORD not in repr(settings)
    assert "s3cr" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)).proxy_url == proxy.url("socks5"), "tasks have it"


@pytest.mark.parametrize(
    "url", ["proxy:1080", "ftp://proxy:21", "socks5://proxy", "socks5://u:s3cr@:1", "http://u:s3cr@h:1/x", "http://h:x"]
)
def test_what_is_no_proxy_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^proxy\.url=\(hidden\): must be socks5://.*host:port") as caught:
        ClientSettings.from_properties({"proxy.url": url})
    assert "s3cr" not in str(caught.value)


def test_canonical_names_and_a_proxy_exclude_each_other() -> None:
    both = {"proxy.url": "socks5://h:1", "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
    with pytest.raises(ConfigError, match="no effect with proxy.url"):
        ClientSettings.from_properties(both)


# --- advertised addresses


def test_an_advertised_address_that_leads_nowhere_is_told_beside_the_one_that_was_given(tmp_path: Path) -> None:
    settings = {"advertised.listeners": "PLAINTEXT://127.0.0.2:9"}
    with (
        BrokerProcess(tmp_path / "data", settings, standalone=True) as broker,
        Cluster(broker.bootstrap, QUICK) as cluster,
    ):
        (node,) = cluster.brokers()
        with pytest.raises(ConnectionFailed) as caught:
            cluster.connection(node)
    text = str(caught.value)
    assert text.startswith("no connection to 127.0.0.2:9: ")
    assert f"advertise (advertised.listeners); bootstrap.servers={broker.bootstrap} was given" in text
    assert "VPC peering, or set proxy.url" in text


def test_of_a_broker_that_was_reached_nothing_is_said_of_its_address(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", standalone=True)
    broker.start()
    with Cluster(f"localhost:{broker.port}", QUICK) as cluster:
        (node,) = cluster.brokers()
        assert cluster.connection(node).usable
        broker.stop()
        with pytest.raises(ConnectionFailed) as caught:
            cluster.connection(node)
    assert "advertise" not in str(caught.value)
