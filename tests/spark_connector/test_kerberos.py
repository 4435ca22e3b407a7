"""Spark jobs that log in by Kerberos while their tickets end.

Each is a Spark of its own, in the realm of the KDC, of which the shared one knows nothing (10 s).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.producer import Producer
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.kerberos import SERVICE, Kdc, keytab_module, listener_settings, principal_of
from tests.support.kerberos_driver import KerberosDriver
from tests.support.topics import Topic
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, kerberos: Kdc) -> Iterator[BrokerProcess]:
    settings = {**SESSION_SETTINGS, **listener_settings(kerberos.keytab(SERVICE))}
    with BrokerProcess(tmp_path_factory.mktemp("kerberos") / "data", settings, standalone=True) as process:
        yield process


def job(broker: BrokerProcess, module: str, topic: str, home: Path) -> KerberosDriver:
    """Writes 10 records, and reads 20 in a stream."""
    Topic(broker.listeners["PLAINTEXT"], topic)
    options = {
        "kafka.bootstrap.servers": broker.listeners["BRIEF"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "kafka",
        "kafka.sasl.jaas.config": module,
    }
    arguments = {"options": options, "topic": topic, "checkpoint": str(home / "checkpoint"), "until": 20}
    return KerberosDriver(arguments, home / "spark.log")


def add_ten(broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.listeners["PLAINTEXT"]) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)


def test_a_stream_with_a_keytab_outlives_its_tickets(
    broker: BrokerProcess, kerberos: Kdc, topic: str, tmp_path: Path
) -> None:
    keytab = kerberos.principal("etl", "-maxlife", "2 seconds")
    with job(broker, keytab_module(keytab, principal_of("etl")), topic, tmp_path) as running:
        assert running.wait_for("stream 10") == ["batch 10"]
        given = kerberos.tickets_given("etl")
        eventually(lambda: kerberos.tickets_given("etl") >= given + 3)
        add_ten(broker, topic)
        running.wait_for("stream 20")
        running.wait_for("done")


def test_a_stream_says_that_its_ticket_has_expired_and_goes_on_after_kinit(
    broker: BrokerProcess, kerberos: Kdc, topic: str, tmp_path: Path
) -> None:
    cache, keytab = tmp_path / "tickets", kerberos.principal("dba")
    kerberos.kinit("dba", keytab, cache)
    module = f'Krb5LoginModule required useTicketCache=true ticketCache="{cache}";'
    with job(broker, module, topic, tmp_path) as running:
        assert running.wait_for("stream 10") == ["batch 10"]
        kerberos.kinit("dba", keytab, cache, "-l", "1s")
        (said,) = running.wait_for("failed")
        assert f"the Kerberos ticket in the ticket cache {cache} has expired: run kinit again" in said
        add_ten(broker, topic)
        kerberos.kinit("dba", keytab, cache)
        running.wait_for("stream 20")
        running.wait_for("done")
