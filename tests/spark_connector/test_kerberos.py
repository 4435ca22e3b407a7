"""Spark jobs that log in by Kerberos while their tickets end.

They need a Spark of their own, in the realm of the KDC, of which the shared one knows nothing (15 s).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def job(broker: BrokerProcess, module: str, topic: str, home: Path) -> dict[str, Any]:
    """Writes 10 records, and reads 20 in a stream."""
    Topic(broker.listeners["PLAINTEXT"], topic)
    options = {
        "kafka.bootstrap.servers": broker.listeners["BRIEF"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "kafka",
        "kafka.sasl.jaas.config": module,
    }
    return {"options": options, "topic": topic, "checkpoint": str(home / topic), "until": 20}


def add_ten(broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.listeners["PLAINTEXT"]) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)


def test_a_stream_outlives_the_tickets_of_a_keytab_and_goes_on_after_kinit_with_those_of_a_cache(
    broker: BrokerProcess, kerberos: Kdc, topic: str, tmp_path: Path
) -> None:
    etl, dba = kerberos.principal("etl", "-maxlife", "2 seconds"), kerberos.principal("dba")
    cache = tmp_path / "tickets"
    cached = f'Krb5LoginModule required useTicketCache=true ticketCache="{cache}";'
    jobs = [
        job(broker, keytab_module(etl, principal_of("etl")), f"{topic}-keytab", tmp_path),
        job(broker, cached, f"{topic}-cache", tmp_path),
    ]
    with KerberosDriver(jobs, tmp_path / "spark.log") as running:
        assert running.wait_for("stream 10") == ["batch 10"]
        given = kerberos.tickets_given("etl")
        eventually(lambda: kerberos.tickets_given("etl") >= given + 2)
        add_ten(broker, f"{topic}-keytab")
        running.wait_for("stream 20")
        kerberos.kinit("dba", dba, cache)
        running.wait_for("done")

        assert running.wait_for("stream 10") == ["batch 10"]
        kerberos.kinit("dba", dba, cache, "-l", "1s")
        (said,) = running.wait_for("failed")
        assert f"the Kerberos ticket in the ticket cache {cache} has expired: run kinit again" in said
        add_ten(broker, f"{topic}-cache")
        kerberos.kinit("dba", dba, cache)
        running.wait_for("stream 20")
        running.wait_for("done")
