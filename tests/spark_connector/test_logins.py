"""Every login (tests/support/logins.py) in every use (tests/support/login_uses.py), at our broker and at Apache Kafka.

Our broker is always there. With `PYKAFKA_TEST_KAFKA_HOME=DIR`, where an Apache Kafka was unpacked or built, the same is
done there: `PYKAFKA_TEST_KAFKA_HOME=DIR pytest tests/spark_connector/test_logins.py`. An authorizer lets in only those
whom `LOGINS` names, so a use that works has logged in, as the right one.

The broker, the other cluster and Spark are started once: the uses cost half a second to a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.client.cluster import Cluster
from broker.errors import PykafkaError
from spark_connector.worker_clients import worker_clients
from tests.support.broker_process import BrokerProcess
from tests.support.login_uses import RECORDS, USES, Use, uses_of
from tests.support.logins import LOGINS, Login, LoginBroker, kinds, login_broker
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=kinds())
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginBroker]:
    try:
        kdc = request.getfixturevalue("kerberos")
    except pytest.skip.Exception:
        kdc = None
    with login_broker(tmp_path_factory.mktemp("logins"), request.param, kdc) as found:
        yield found
        worker_clients().close()


@pytest.mark.parametrize(("login", "use"), [(one, use) for one in LOGINS for use in uses_of(one)], ids=str)
def test_use(
    broker: LoginBroker,
    own_broker: BrokerProcess,
    spark: SparkSession,
    login: Login,
    use: str,
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    made = Topic(broker.bootstrap, topic)
    made.number(RECORDS)
    USES[use](Use(login.client(broker), login.options, made, group, tmp_path, spark, own_broker.bootstrap))


@pytest.mark.parametrize("login", LOGINS, ids=str)
def test_with_a_wrong_secret_nobody_comes_in(broker: LoginBroker, login: Login) -> None:
    wrong = {**login.client(broker, right=False), "default.api.timeout.ms": 2_000}
    with Cluster(wrong) as cluster, pytest.raises(PykafkaError, match=r"(?i)authentication|certificate|token|Kerberos"):
        cluster.brokers()
