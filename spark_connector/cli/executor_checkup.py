"""The part of `pykafka doctor --master` that asks Spark's executors; the console finds it by the entry point group
`pykafka.checkups`.

Spark does not say where it will run a task. So jobs of as many tasks as there are cores, each of which keeps its core
for a moment, are run until each executor that Spark knows has answered and no new one has appeared for a while. A host
whose tasks fail is left out by Spark, told with Spark's reason, and does not stop the others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.errors import PykafkaError
from broker.storage.object_stores import object_store_of
from broker.storage.storage import Storage, open_storage
from broker.storage.url_secrets import without_secrets
from broker.tools.checkup import PACKAGE, Finding
from broker.tools.output import counted, note
from spark_connector.cli import host_probe
from spark_connector.cli.executor_findings import HostSeen, failed_host, findings_of
from spark_connector.cli.host_probe import DRIVERS_FILE, Order
from spark_connector.cli.session import LazySession, leaving_at_interrupt, spark_log
from spark_connector.first_contact import FIRST_CONTACT_S
from spark_connector.loads.addresses import hadoop_settings, is_database_url, is_iceberg, storage_options_for
from spark_connector.outages import one_line

_HOLD_S = 0.3
_QUIET_S = 3.0
"""How long no new executor may appear."""
_PATIENCE_S = 120.0
"""How long to wait for a sign of an executor."""
_MOST_ROUNDS = 100
_TASKS_OF_A_SERVER = 16
"""Of a job through Spark Connect, which does not tell how many cores there are."""
_SETTINGS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "1",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": "1",
}
_LIBRARIES = (
    *("pyarrow", "numpy", "cramjam", "fastavro", "protobuf", "fsspec", "hdfs-native", "s3fs", "gcsfs", "adlfs"),
    *("deltalake", "pyiceberg"),
)
"""What formats, stores and tables of loads need, as pip names it."""


def look_at_executors(
    master: str,
    settings: Mapping[str, str],
    properties: Mapping[str, str],
    to: str | None,
    storage_options: Mapping[str, str],
) -> Iterator[Finding]:
    """Every check of every executor's host. `properties`: of the client, empty if no broker is to be tried; `to`: the
    destination of loads. Raises ConfigError."""
    brokers, untold = _advertised(properties)
    yield from untold
    with contextlib.ExitStack() as stack:
        place = _Place("") if to is None else stack.enter_context(_probing(to, storage_options, settings))
        yield from place.untold
        order = Order(
            package=PACKAGE,
            libraries=_LIBRARIES,
            brokers=tuple(brokers.items()),
            client=tuple(properties.items()),
            place=place.for_executors,
            hold_s=_HOLD_S,
        )
        here = json.loads(host_probe.look(tuple(order._replace(brokers=(), place=None, hold_s=0.0))))
        stack.enter_context(leaving_at_interrupt("interrupted"))
        log = stack.enter_context(spark_log())
        spark = stack.enter_context(LazySession("pykafka doctor", master, {**_SETTINGS, **settings}, log))
        asked = _Executors(spark.session(), is_alone=master == "local" or master.startswith("local["))
        asked.ask_all(order)
        yield from asked.findings()
        seen_here = place.names()
        for name in sorted(asked.seen):
            yield from findings_of(asked.seen[name], here, place.shown, seen_here)


def _advertised(properties: Mapping[str, str]) -> tuple[dict[str, str], list[Finding]]:
    """Name → advertised address of each broker, and a finding where the driver does not learn them."""
    if not properties:
        return {}, []
    settings = ClientSettings.from_properties({**properties})
    try:
        with Cluster(settings, create_topics=False, first_contact_s=FIRST_CONTACT_S) as cluster:
            return {f"broker {node.id}": node.address for node in cluster.brokers()}, []
    except PykafkaError as error:
        says = f"the driver does not learn their advertised names, so executors try the given addresses: {error}"
        given = {address: address for address in settings.bootstrap_servers}
        return given, [Finding("brokers", "unknown", says)]


class _Place(NamedTuple):
    """`shown`: the destination in words; `names`: lists the probe files that the driver sees there."""

    shown: str
    for_executors: tuple[str, tuple[tuple[str, str], ...], str] | None = None
    names: Callable[[], list[str]] = list
    untold: tuple[Finding, ...] = ()


@contextlib.contextmanager
def _probing(to: str, options: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[_Place]:
    """A directory for probe files in the destination, or in the nearest one above it that is there, with a file of the
    driver in it. It is removed at the end of the block."""
    given = storage_options_for(to, options, hadoop_settings(settings))
    if is_iceberg(to) or is_database_url(to):
        says = f"{without_secrets(to)} was not looked at: it is no directory"
        mend = "--to with the URL of the directory that the table's files lie in looks at that"
        yield _Place(to, untold=(Finding("destination", "unknown", says, mend),))
        return
    wanted = open_storage(to, given)
    name, token = f".pykafka-doctor-{secrets.token_hex(6)}", secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        try:
            above = (one for one, _ in wanted.parents())
            storage = wanted if object_store_of(to) else _first_there(itertools.chain([wanted], above))
            stack.callback(_remove, storage, name)
            with storage.open_output(f"{name}/{DRIVERS_FILE}") as file:
                file.write(token.encode())
            url = storage.url_of(name).removeprefix("file://")
            place = _Place(wanted.shown, (url, tuple(storage.options.items()), token), partial(storage.names, name))
        except (PykafkaError, OSError) as error:
            says = f"the driver may not write into {wanted.shown}: {error}"
            place = _Place(wanted.shown, untold=(Finding("destination", "error", says),))
        yield place


def _remove(storage: Storage, name: str) -> None:
    try:
        storage.remove(name)
    except (PykafkaError, OSError) as error:
        note(f"{storage.shown}/{name} could not be removed, do it by hand: {error}")


def _first_there(directories: Iterable[Storage]) -> Storage:
    for directory in directories:
        if directory.exists(""):
            return directory
    raise FileNotFoundError("neither it nor a directory above it is there")


class _Executors:
    """Runs the jobs, and keeps what each host has told. `is_alone`: the driver is the only executor."""

    def __init__(self, spark: SparkSession, *, is_alone: bool) -> None:
        self._spark = spark
        self._is_alone = is_alone
        self._context = getattr(spark, "_sc", None)  # none through Spark Connect
        self._by_attempt: dict[int, str] = {}
        self.seen: dict[str, HostSeen] = {}
        self.failed: dict[str, str] = {}
        """Host → what Spark says of a task that failed there."""
        self.why_not = ""
        self.untold = ""
        """Why it is not known which executors Spark has, and what became of their tasks."""

    def ask_all(self, order: Order) -> None:
        """Ask until all hosts that Spark knows have answered or failed, and none has appeared for a while."""
        changed, before = time.monotonic(), (0, 0)
        for rounds in itertools.count(1):
            self._ask(order._replace(known=tuple(str(one.told["host"]) for one in self.seen.values())))
            heard, silent, now = len(self.seen) + len(self.failed), len(self._silent()), time.monotonic()
            if (heard, silent) != before:
                changed, before = now, (heard, silent)
            # The second round is quick, and compares the clocks.
            is_quiet = rounds > 1 and (self._is_alone or now - changed >= _QUIET_S)
            if (heard and is_quiet and not silent) or now - changed >= _PATIENCE_S or rounds == _MOST_ROUNDS:
                return

    def findings(self) -> Iterator[Finding]:
        """What is to be said of the hosts as a whole, and of those that did not answer."""
        silent = sorted(self._silent())
        for name in sorted(self.failed):
            yield failed_host(name, self.failed[name])
        for name in silent:
            says = f"{name}: no task ran there within {_PATIENCE_S:.0f} s"
            yield Finding("executor", "unknown", says, "look at its executor's log, and at what else keeps its cores")
        if not self.seen and not self.failed and not silent:
            says = f"none has started within {_PATIENCE_S:.0f} s{': ' if self.why_not else ''}{self.why_not}"
            mend = "is the master right, has it workers with free cores, and do they reach spark.driver.host?"
            yield Finding("executors", "error", says, mend)
            return
        hosts = len(self.seen) + len(self.failed) + len(silent)
        count = f"{counted(hosts, 'host')}, {len(self.seen)} of them answered"
        if self._is_dynamic():
            says = f"{count}; Spark starts executors when they are needed: of hosts that have none now nothing is known"
            mend = "--conf spark.dynamicAllocation.minExecutors=N has Spark start N of them"
            yield Finding("executors", "warning", says, mend)
        elif self._context is None:
            says = f"{count}; Spark Connect does not tell whether there are others"
            yield Finding("executors", "unknown", says, "give the server's own --master, where that can be reached")
        elif self.untold:
            yield Finding(
                "executors", "unknown", f"{count}; Spark does not tell whether there are others: {self.untold}"
            )
        else:
            yield Finding("executors", "ok" if len(self.seen) == hosts else "error", count)

    def _ask(self, order: Order) -> None:
        group = f"pykafka-doctor-{secrets.token_hex(4)}"
        overdue = threading.Timer(_PATIENCE_S, self._cancel, (group,))
        overdue.daemon = True
        if self._context is not None:
            self._context.setJobGroup(group, "pykafka doctor", interruptOnCancel=True)
        overdue.start()
        sent = time.time()
        try:
            answers = self._run(order)
        except Exception as error:  # Spark's, py4j's, gRPC's; what failed on a host is in the store
            text = str(error)
            self.why_not = (text.partition("\n: ")[2] or text).partition("\n")[0]  # py4j's first line names its call
            answers = []
        finally:
            overdue.cancel()
        received = time.time()
        self._read_tasks(group)
        for told in map(json.loads, answers):
            name = self._by_attempt.get(told["task"], told["host"]) if told["task"] is not None else told["host"]
            name = told["host"] if name in ("localhost", "127.0.0.1") else name
            if name not in self.seen:
                if "package" not in told:
                    continue  # another executor of a host that has another name for Spark
                also = "" if name == told["host"] else f" ({name})"
                self.seen[name] = HostSeen(told["host"] + also, told)
            self.seen[name].timed(told["began"], told["ended"], sent, received)

    def _run(self, order: Order) -> list[str]:
        tasks = self._context.defaultParallelism if self._context is not None else _TASKS_OF_A_SERVER
        look, asked = host_probe.look, tuple(order)
        cloudpickle.register_pickle_by_value(host_probe)  # type: ignore[no-untyped-call]
        try:
            # Not by Arrow: an executor may lack pyarrow.
            task = udf(lambda _: look(asked), "string", useArrow=False).asNondeterministic()
            rows = self._spark.range(0, tasks, 1, tasks).select(task(col("id"))).collect()
        finally:
            cloudpickle.unregister_pickle_by_value(host_probe)  # type: ignore[no-untyped-call]
        return [row[0] for row in rows]

    def _cancel(self, group: str) -> None:
        if self._context is not None:
            self._context.cancelJobGroup(group)
        else:
            self._spark.interruptAll()

    def _read_tasks(self, group: str) -> None:
        """Where each task of the group ran, and why those failed that did, as Spark's own pages have it."""
        if self._context is None:
            return
        tracker = self._context.statusTracker()
        with self._of_spark():
            spark = self._context._jsc.sc()
            spark.listenerBus().waitUntilEmpty()
            jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
            for stage in (stage for job in jobs if job is not None for stage in job.stageIds):
                tasks = spark.statusStore().taskList(stage, 0, 1_000_000)
                for task in map(tasks.apply, range(tasks.size())):
                    self._by_attempt[task.taskId()] = task.host()
                    if task.errorMessage().isDefined() and task.status() == "FAILED":
                        self.failed.setdefault(task.host(), task.errorMessage().get())

    def _silent(self) -> set[str]:
        """Hosts whose executors Spark knows, and of which no task has told or failed."""
        known: set[str] = set()
        if self._context is not None and not self._is_alone:
            with self._of_spark():
                executors = self._context._jsc.sc().statusStore().executorList(True)
                told = [executors.apply(number) for number in range(executors.size())]
                known = {one.hostPort().rpartition(":")[0] for one in told if one.id() != "driver"}
        return known - self.seen.keys() - self.failed.keys()

    @contextlib.contextmanager
    def _of_spark(self) -> Iterator[None]:
        """Around what is private to Spark. Without it hosts are named by themselves, and others may be missed."""
        try:
            yield
        except Exception as error:
            self.untold = one_line(str(error))

    def _is_dynamic(self) -> bool:
        return self._spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
