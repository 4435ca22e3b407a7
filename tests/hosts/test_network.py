"""The hosts of the tests are hosts: names, disks of their own, brokers, Spark, and cuts that nobody is told of."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.hosts import HOME, Host, Network, start_broker, start_master, start_worker, start_zookeeper
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def test_hosts_have_names_and_disks_of_their_own(network: Network) -> None:
    one, two = network.host("one"), network.host("two")
    one.run("sh", "-c", f"echo mine > {HOME}/file")
    assert one.run("hostname").strip() == "one"
    assert one.run("getent", "hosts", "two").split() == [two.address, "two"]
    assert one.outside(HOME / "file").read_text() == "mine\n"
    assert not two.outside(HOME / "file").exists()
    assert two.run("sh", "-c", f"cat {HOME}/file || echo none").strip() == "none"


def test_packets_vanish_in_a_cut(network: Network) -> None:
    one, two, three = (network.host(name) for name in ("one", "two", "three"))
    two.serve("listener", "python3", "-m", "http.server", "8000").wait_for("")

    def reaches(host: Host) -> bool:
        return bool(host.call("tests.hosts.test_network:answers", two.name, 8000))

    eventually(lambda: reaches(one))
    with network.cut(two):
        assert not reaches(one)
    eventually(lambda: reaches(one))
    with network.cut_between(one, two):
        assert not reaches(one)
        assert reaches(three)
    eventually(lambda: reaches(one))


def answers(host: str, port: int) -> bool:
    """Whether a connection is made within a second; OSError unless it times out."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except (TimeoutError, ConnectionRefusedError):
        return False
    return True


def test_brokers_and_executors_are_on_hosts(network: Network) -> None:
    zookeeper = start_zookeeper(network.host("zk"))
    for number in (1, 2):
        start_broker(network.host(f"b{number}"), number, zookeeper)
    master = start_master(network.host("master"))
    for name in ("w1", "w2"):
        start_worker(network.host(name), master)
    driver = network.host("driver")
    driver.pykafka("topics", "create", "--bootstrap-server", "b1:9092", "--topic", "t", "--partitions", "4")
    counted = driver.call("tests.hosts.test_network:executors_and_rows", master, "b1:9092", "t", timeout=300)
    assert counted == [["w1", "w2"], 1000]


def executors_and_rows(master: str, bootstrap: str, topic: str) -> list[Any]:
    """The hosts of the executors, and the rows that they read of 1,000 records."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    session = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    spark = session.config("spark.executor.memory", "512m").getOrCreate()
    rows = spark.range(1000).select(F.col("id").cast("string").alias("value"))
    options = {"kafka.bootstrap.servers": bootstrap}
    rows.write.format("pykafka").options(**options, topic=topic).mode("append").save()
    read = spark.read.format("pykafka").options(**options, subscribe=topic, minPartitions="8").load()
    hosts = read.select(F.udf(socket.gethostname)().alias("host")).distinct().collect()
    return [sorted(row["host"] for row in hosts), read.count()]
