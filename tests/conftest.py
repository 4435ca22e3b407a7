"""Fixtures every test may ask for: a ZooKeeper, a broker, a topic name, a Spark session.

The servers are real processes, started once per session where tests may share them and once per test where
they are killed or configured. The log of every broker that runs is attached to a failed test's report.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.zookeeper.embedded_server import EmbeddedZooKeeper
from tests.support import broker_process, randomness
from tests.support.aws_profiles import aws_profiles
from tests.support.broker_process import BrokerProcess
from tests.support.guarded import ForeignGuarded, Guarded, GuardedBroker, foreign_addresses
from tests.support.kafka import RUN, VARIABLE, ExternalKafka, Kafka, external_kafka, tidy
from tests.support.kerberos import SERVICE, Kdc, foretold
from tests.support.requirements import Unavailable, give_up
from tests.support.source_tree import ROOT
from tests.support.spark_home import SMALL_QUERIES, shared_spark_home
from tests.support.topics import Topic

# --- Spares the processes that tests start the import of Hypothesis, a third of what a broker takes to start.
# kio, which has the protocol's messages, registers them with Hypothesis wherever that is installed. The processes of
# an installation without it do not import it either.

_SITE = 'import sys\n\nsys.modules["hypothesis"] = None\n'


def spare_hypothesis() -> None:
    """Let every Python that is started from now on do without. Not for a process that starts pytest."""
    directory = ROOT / ".pytest_cache" / "children"
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f"{os.getpid()}.new"
    new.write_text(_SITE, encoding="utf-8")
    new.replace(directory / "sitecustomize.py")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


# --- fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Every Spark below starts cheaply, and its Python workers run this interpreter, whatever `python3` the PATH holds.
os.environ.update(shared_spark_home().environment())

randomness.register_profiles()

LOG_TAIL = 4_000  # characters of a broker's log shown with a failed test

# Defaults but for what would only make tests wait. And tests write records of years ago: one in whose midst the broker
# looked for expired segments would lose them.
SESSION_SETTINGS = {
    "log.retention.check.interval.ms": "86400000",
    "group.initial.rebalance.delay.ms": "50",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

_counter = itertools.count()

BrokerFactory = Callable[..., BrokerProcess]


LONG_FIRST = ("faults", "notebooks", "spark_connector", "hdfs")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare what tests start, and forgive PySpark 4.0 and 4.1 the sockets they leave open."""
    randomness.begin_run(config)
    gc.disable()  # a fifth of the time of a collection of all tests
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        spare_hypothesis()
    if version("pyspark").startswith(("4.0.", "4.1.")):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


# Here `broker` is any Kafka: a test that takes it is marked `kafka`, and one that needs our process takes `own_broker`.
ON_ANY_KAFKA = ("client", "compat", "mirror", "spark_connector", "tools", "ui")


def pytest_collection_finish() -> None:
    """Collect garbage of the tests only: looking at all tests and modules takes half a second each time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long files first, so that two workers end together; mark what any Kafka can be put under."""

    def rank(item: pytest.Item) -> int:
        folder = folder_of(item)
        return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)

    items.sort(key=rank)
    for item in items:
        randomness.explore(item)
        fixtures = getattr(item, "fixturenames", ())
        if "kdc" in fixtures:
            item.add_marker(pytest.mark.timeout(1_800))  # the first one builds a package, unless `make prepared` has
        if "spark" in fixtures and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(400))  # `take_all` waits for 300 s, and the first one starts a JVM
        if folder_of(item) in ON_ANY_KAFKA and "foreign_kafka" in fixtures and "own_broker" not in fixtures:
            item.add_marker(pytest.mark.kafka)
        if "foreign_guarded" in fixtures and "own_guarded" not in fixtures:
            item.add_marker(pytest.mark.guarded_kafka)
    chosen = "kafka" if external_kafka() else "guarded_kafka" if foreign_addresses() else None
    if chosen is not None:
        slow_too = "slow" in config.option.markexpr  # `-m kafka` alone has replaced the `not slow` of pyproject.toml

        def meant(item: pytest.Item) -> bool:
            return item.get_closest_marker(chosen) is not None and (slow_too or not item.get_closest_marker("slow"))

        config.hook.pytest_deselected(items=[item for item in items if not meant(item)])
        items[:] = [item for item in items if meant(item)]


def folder_of(item: pytest.Item) -> str:
    """The folder of tests/ that it is in."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def pytest_report_header() -> list[str]:
    """Say what is drawn, and which cluster is tested."""
    kafka = external_kafka()
    cluster = [] if kafka is None else [f"{VARIABLE}: {kafka.bootstrap}, names of this run have {RUN} in them"]
    return [randomness.header(), *cluster]


def pytest_runtest_setup(item: pytest.Item) -> None:
    randomness.begin_test(item)
    for broker in broker_process.RUNNING:
        broker.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show what the brokers have said since the test began when it fails."""
    report = yield
    if report.failed:
        for broker in broker_process.RUNNING:
            report.sections.append((f"log of the broker at {broker.bootstrap}", broker.output_of_test[-LOG_TAIL:]))
    return report


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a ZooKeeper server for the whole session; take a chroot of your own below it."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the KDC, which only some tests start."""
    return tmp_path_factory.mktemp("kdc")


@pytest.fixture(scope="session")
def kdc(realm: Path) -> Iterator[Kdc]:
    """A Kerberos realm for the whole session, that of the `spark` fixture; `with kdc.entered():` for this process."""
    try:
        with Kdc(realm) as started:
            started.principal(SERVICE)
            yield started
    except Unavailable as error:
        give_up(f"Kerberos: {error}")


@pytest.fixture(scope="module")
def kerberos(kdc: Kdc) -> Iterator[Kdc]:
    """The same, and this process and those that it starts are in it while the tests of a module run."""
    with kdc.entered():
        yield kdc


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    """Our broker, shared by the session: use your own topic and group names, never stop it."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data_dir, SESSION_SETTINGS, zookeeper=f"{zookeeper}/session") as process:
        yield process
    # Whatever the clients did to it, nothing may have come as a surprise.
    assert "Traceback" not in process.output, process.output[-LOG_TAIL:]


@pytest.fixture(scope="session")
def foreign_guarded() -> Iterator[tuple[str, str] | None]:
    """The addresses of the Kafka with an authorizer that `PYKAFKA_TEST_GUARDED_KAFKA` names, if it does; what tests
    made there is deleted at the end."""
    addresses = foreign_addresses()
    yield addresses
    if addresses is not None:
        tidy(ExternalKafka(addresses[0]))


@pytest.fixture(scope="session")
def guarded_session(
    tmp_path_factory: pytest.TempPathFactory, foreign_guarded: tuple[str, str] | None
) -> Iterator[Guarded]:
    if foreign_guarded is not None:
        yield ForeignGuarded(*foreign_guarded)
        return
    with GuardedBroker(tmp_path_factory.mktemp("guarded") / "data") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-LOG_TAIL:]


@pytest.fixture
def guarded(guarded_session: Guarded) -> Iterator[Guarded]:
    """A broker with an authorizer, shared by the session; each test finds it without ACLs."""
    yield guarded_session
    guarded_session.delete_acls()


@pytest.fixture
def own_guarded(guarded: Guarded) -> Guarded:
    """The same, of a test that is not run where the environment names another."""
    return guarded


@pytest.fixture(scope="session")
def foreign_kafka() -> Iterator[Kafka | None]:
    """The cluster that `PYKAFKA_TEST_KAFKA` names, if it does; what tests made there is deleted at the end."""
    kafka = external_kafka()
    yield kafka
    if kafka is not None:
        tidy(kafka)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, foreign_kafka: Kafka | None) -> Kafka:
    """Any Kafka: `foreign_kafka`, which tests marked `kafka` meet, or else `own_broker`."""
    ours: Kafka = foreign_kafka or request.getfixturevalue("own_broker")
    return ours


@pytest.fixture
def broker_factory(tmp_path: Path, zookeeper: str) -> Iterator[BrokerFactory]:
    """`broker_factory(overrides, name=…, zookeeper=…)` starts a broker of this test's own, on fresh data.

    It is the test's to stop, kill and start again; what still runs at the end is killed. Brokers of one test
    share a ZooKeeper chroot, and so form one cluster when their `broker.id` differ.
    """
    chroot = f"{zookeeper}/test-{next(_counter)}"
    started: list[BrokerProcess] = []

    def start(
        overrides: Mapping[str, str] | None = None, *, name: str = "broker", zookeeper: str | None = chroot
    ) -> BrokerProcess:
        process = BrokerProcess(tmp_path / name, overrides, zookeeper=zookeeper)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses; the topic itself does not exist yet."""
    return unique_name(request.node.name)


@pytest.fixture
def made_topic(broker: Kafka, topic: str) -> str:
    """The same, and it is there with one partition: not every Kafka makes a topic that is asked for."""
    return Topic(broker.bootstrap, topic).name


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group name no other test uses."""
    return unique_name("group-" + request.node.name)


def unique_name(text: str) -> str:
    """A legal topic or group name that tells where it comes from."""
    return f"{re.sub(r'[^a-zA-Z0-9_-]+', '-', text)[:120].strip('-')}-{RUN}-{next(_counter)}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, realm: Path) -> Iterator[SparkSession]:
    """One local Spark session of two cores for all tests of the process."""
    # Half a second of import that tests without Spark need not pay.
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("pykafka-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config(map={**SMALL_QUERIES})
    )
    with foretold(realm), aws_profiles(realm):  # the variables of Python workers are those of the JVM
        session = builder.getOrCreate()
    yield session
    session.stop()
