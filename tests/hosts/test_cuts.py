"""Everything works on hosts of its own, and one after the other their links are cut: nothing is lost or doubled.

A producer, a group, an archive, and then six jobs of Spark work at one topic all the time. Each test cuts links so
that packets vanish, heals them, waits until all get on, and has others than us count what there is. The tables that are
printed at the end are those of docs/promises.md. The clients' cuts take ten minutes; Spark's take an hour where others
use the cores, too.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.host_counts import Numbers
from tests.support.host_cuts import (
    CLIENTS,
    CUTS_OF_CLIENTS,
    CUTS_OF_SPARK,
    SPARK,
    Cut,
    Found,
    Outcome,
    judge,
    judge_upsert,
    table,
)
from tests.support.hosts import Host
from tests.support.many_hosts import Application, ManyHosts
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

_TOPIC = "cut"
_PATIENCE_S = 400
_AFTER_S = 3


class Cuts:
    """The hosts, the clients and, once it is asked for, Spark at work."""

    def __init__(self, site: ManyHosts) -> None:
        self.site = site
        self.clients = site.clients(_TOPIC)
        self.of_clients: list[Outcome] = []
        self.of_spark: list[Outcome] = []

    @functools.cached_property
    def application(self) -> Application:
        application = self.site.application(_TOPIC, [*SPARK])
        application.wait_until_all_go_on(_PATIENCE_S)
        return application

    def play_clients(self, cut: Cut) -> Outcome:
        self.clients.ask("reset")
        with self._cut(cut):
            threading.Event().wait(cut.seconds)
        acknowledged = self._healed()
        threading.Event().wait(_AFTER_S)
        pauses = self.clients.ask("pauses")
        archived, found = self.site.found(_TOPIC, tables=False)
        archive = found["archive"]
        counts = {
            "producer": judge(found["topic"], acknowledged),
            "group": judge(self._read(acknowledged), acknowledged),
            "archive": ([0] * (archived - len(archive.found)), list(archive.doubled)),
        }
        assert archived > 0, "nothing has left the disks"
        self.of_clients.append(
            Outcome(cut, len(acknowledged), {job: Found(*counts[job], pauses[job]) for job in CLIENTS})
        )
        assert self.clients.ask("failed") == []
        return self.of_clients[-1]

    def play_spark(self, cut: Cut) -> Outcome:
        """Begins and ends when all replicas are in sync and all jobs get on."""
        failed = {job: len(errors) for job, errors in self.application.failures.items()}
        begun = time.monotonic()
        with self._cut(cut):
            threading.Event().wait(cut.seconds)
        acknowledged = self._healed()
        for _ in range(2):  # what is under way may have been planned before
            self.application.wait_until_all_go_on(_PATIENCE_S)
        application, now = self.application, time.monotonic()
        _, found = self.site.found(_TOPIC, tables=True)
        found["batch_read"] = application.batch
        jobs = {}
        for job in SPARK:
            counts = (judge_upsert if job == "upsert" else judge)(found[job], acknowledged)
            jobs[job] = Found(*counts, application.pause(job, begun, now), application.failures[job][failed[job] :])
        self.of_spark.append(Outcome(cut, len(acknowledged), jobs))
        return self.of_spark[-1]

    def _healed(self) -> frozenset[int]:
        """What is acknowledged when all replicas are in sync."""
        eventually(lambda: self.clients.ask("healed"), _PATIENCE_S, 0.5)
        return Numbers.of_json(self.clients.ask("acknowledged")).found

    def _read(self, acknowledged: frozenset[int]) -> Numbers:
        """By the group, once it has all that was acknowledged, or not within a minute."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: not Numbers.of_json(self.clients.ask("read")).missing(acknowledged), interval=0.5)
        return Numbers.of_json(self.clients.ask("read"))

    @contextlib.contextmanager
    def _cut(self, cut: Cut) -> Iterator[None]:
        site, network = self.site, self.site.network
        roles = {name: site.brokers[number] for name, number in self.clients.ask("roles").items()}
        hosts: dict[Cut, list[Host]] = {
            Cut.LEADER: [roles["leader"]],
            Cut.COORDINATOR: [roles["coordinator"]],
            Cut.CONTROLLER: [roles["controller"]],
            Cut.ZOOKEEPER_SHORT: [site.zookeeper],
            Cut.ZOOKEEPER: [site.zookeeper],
            Cut.STORE: [site.store],
            Cut.CATALOG: [site.catalog],
            Cut.WORKER: [site.workers[1]],
            Cut.DRIVER: [site.drivers[0]],
        }
        pairs = {
            Cut.BROKERS: (roles["leader"], next(host for host in site.brokers.values() if host is not roles["leader"])),
            Cut.BROKER_AND_WORKER: (roles["leader"], site.workers[0]),
        }
        with network.cut_between(*pairs[cut]) if cut in pairs else network.cut(*hosts.get(cut, [])):
            if cut is Cut.DRIVER:
                self.application = site.application(_TOPIC, [*SPARK], driver=1)
            yield
            if cut is Cut.WORKER:
                site.workers[1].kill()
        if cut is Cut.WORKER_KILLED:
            site.workers[1].kill()
        if cut is Cut.DRIVER:
            site.drivers[0].kill()  # it was there again for a moment, beside its successor
        if cut in (Cut.WORKER, Cut.WORKER_KILLED):
            site.start_worker(site.workers[1])


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuts]:
    try:
        with ManyHosts(tmp_path_factory.mktemp("cuts")) as site:
            cuts = Cuts(site)
            yield cuts
            print(table(cuts.of_clients, CLIENTS))
            print(table(cuts.of_spark, SPARK))
    except Unavailable as missing:
        give_up(str(missing))


@pytest.mark.parametrize("cut", CUTS_OF_CLIENTS, ids=lambda cut: cut.name.lower())
def test_clients_and_the_archive_lose_and_double_nothing(cuts: Cuts, cut: Cut) -> None:
    outcome = cuts.play_clients(cut)
    print(outcome)
    assert not outcome.problems


@pytest.mark.parametrize("cut", CUTS_OF_SPARK, ids=lambda cut: cut.name.lower())
def test_jobs_of_spark_lose_and_double_nothing(cuts: Cuts, cut: Cut) -> None:
    outcome = cuts.play_spark(cut)
    print(outcome)
    for job, found in outcome.jobs.items():
        for error in found.failures:
            print(f"{job}: {error}")
    assert not outcome.problems
