"""Everything works on hosts of its own, and one after the other their links are cut: nothing is lost or doubled.

A producer, a group, an archive and six jobs of Spark work at one topic all the time. Each test cuts links so that
packets vanish, heals them, waits until each job has got on twice, and has others than us count what there is. The table
that the last test prints is in docs/promises.md. Half an hour on two cores that nobody else uses.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.host_counts import Numbers
from tests.support.host_cuts import SPARK_JOBS, Cut, Found, Outcome, judge, judge_upsert, table
from tests.support.hosts import Host
from tests.support.many_hosts import ManyHosts
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

_TOPIC = "cut"
_PATIENCE_S = 400


class Cuts:
    """The hosts, and all jobs at work."""

    def __init__(self, site: ManyHosts) -> None:
        self.site = site
        self.clients = site.clients(_TOPIC)
        self.application = site.application(_TOPIC, SPARK_JOBS)
        self.outcomes: list[Outcome] = []

    def play(self, cut: Cut) -> Outcome:
        self.settle()
        begun, failed = time.monotonic(), self._failures()
        self.clients.ask("reset")
        with self._cut(cut):
            threading.Event().wait(cut.seconds)
        self.settle()
        acknowledged = Numbers.of_json(self.clients.ask("acknowledged")).found
        for _ in range(2):
            self.application.wait_until_all_go_on(_PATIENCE_S)
        pauses = self.clients.ask("pauses")
        pauses |= {job: self.application.pause(job, begun, time.monotonic()) for job in SPARK_JOBS}
        found = self._found(acknowledged)
        jobs = {job: Found(*found[job], pauses[job]) for job in found}
        for job, errors in self._failures().items():
            jobs[job].failures = errors[len(failed.get(job, [])) :]
        self.outcomes.append(Outcome(cut, len(acknowledged), jobs))
        return self.outcomes[-1]

    def settle(self) -> None:
        """Return when all replicas are in sync, and each job has got on since."""
        eventually(lambda: self.clients.ask("healed"), _PATIENCE_S, 0.5)
        self.application.wait_until_all_go_on(_PATIENCE_S)

    def _found(self, acknowledged: frozenset[int]) -> dict[str, tuple[list[int], list[int]]]:
        site = self.site
        archived, in_archive = site.call("in_archive", site.bootstrap, _TOPIC)
        archive = Numbers.of_json(in_archive)
        assert archived > 0, "nothing has left the disks"
        found = {
            "producer": judge(Numbers.of_json(site.call("in_topic", site.bootstrap, _TOPIC)), acknowledged),
            "group": judge(self._read(acknowledged), acknowledged),
            "batch_read": judge(self.application.read, acknowledged),
            "upsert": judge_upsert(site.found("upsert", _TOPIC), acknowledged),
            "archive": ([0] * (archived - len(archive.found)), list(archive.doubled)),
        }
        return found | {job: judge(site.found(job, _TOPIC), acknowledged) for job in SPARK_JOBS if job not in found}

    def _read(self, acknowledged: frozenset[int]) -> Numbers:
        """By the group, once it has all that was acknowledged, or not within a minute."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: not Numbers.of_json(self.clients.ask("read")).missing(acknowledged), interval=0.5)
        return Numbers.of_json(self.clients.ask("read"))

    def _failures(self) -> dict[str, list[str]]:
        return {"producer": self.clients.ask("failed")} | {
            job: list(errors) for job, errors in self.application.failures.items()
        }

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
                self._first, self.application = self.application, site.application(_TOPIC, SPARK_JOBS, driver=1)
            yield
            if cut is Cut.WORKER:
                site.workers[1].kill()
        if cut is Cut.WORKER_KILLED:
            site.workers[1].kill()
        if cut in (Cut.WORKER, Cut.WORKER_KILLED):
            site.start_worker(site.workers[1])

    def close(self) -> None:
        self.application.close()
        self.clients.close()


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuts]:
    try:
        with ManyHosts(tmp_path_factory.mktemp("cuts")) as site:
            cuts = Cuts(site)
            yield cuts
            print(table(cuts.outcomes))
            cuts.close()
    except Unavailable as missing:
        give_up(str(missing))


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
def test_nothing_is_lost_or_doubled(cuts: Cuts, cut: Cut) -> None:
    outcome = cuts.play(cut)
    print(outcome)
    for job, found in outcome.jobs.items():
        for error in found.failures:
            print(f"{job}: {error}")
    assert not outcome.problems
    assert not outcome.jobs["producer"].failures
