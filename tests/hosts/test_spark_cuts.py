"""Spark's jobs work on hosts of their own, and hosts fall silent or are gone: nothing is lost or doubled.

Each test starts an application that reads, copies and loads a topic to which a producer writes all the time, cuts links
so that packets vanish, waits until every job has got on twice afterwards, and has others than us count what there is.
The table that is printed at the end is that of docs/promises.md. A quarter of an hour, and more where others use the
cores.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.host_counts import Numbers
from tests.support.host_cuts import CUTS_OF_SPARK, SPARK, Cut, Found, Outcome, judge, judge_upsert, table
from tests.support.many_hosts import Clients
from tests.support.requirements import Unavailable, give_up
from tests.support.spark_hosts import Application, SparkHosts
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

_PATIENCE_S = 400
_HEALED_S = 100


class SparkCuts:
    """The hosts, and what has been played on them."""

    def __init__(self, site: SparkHosts) -> None:
        self.site = site
        self.outcomes: list[Outcome] = []

    def play(self, cut: Cut) -> Outcome:
        topic = f"spark-{cut.name.lower()}"
        clients = self.site.at_work(topic)
        application = self.site.application(topic, self.site.drivers[0])
        application.wait_until_all_go_on(_PATIENCE_S)
        begun = time.monotonic()
        with self._cut(cut, topic, clients, application) as at_work:
            eventually(lambda: clients.ask("healed"), _HEALED_S, 0.5)
            at_work.wait_until_all_go_on(_PATIENCE_S)
            acknowledged = Numbers.of_json(clients.ask("acknowledged")).found
            at_work.wait_until_all_go_on(_PATIENCE_S, times=2)  # what is under way may have been planned before
            pauses = at_work.pauses(begun, time.monotonic())
            assert clients.ask("failed") == []
            found = self.site.written(topic) | {"batch_read": at_work.read}
        jobs = {}
        for job in SPARK:
            counts = (judge_upsert if job == "upsert" else judge)(found[job], acknowledged)
            jobs[job] = Found(*counts, pauses[job], at_work.failed(job, begun))
        self.outcomes.append(Outcome(cut, len(acknowledged), jobs))
        at_work.stop()
        clients.stop()
        return self.outcomes[-1]

    @contextlib.contextmanager
    def _cut(self, cut: Cut, topic: str, clients: Clients, application: Application) -> Iterator[Application]:
        """The application that goes on."""
        site, network = self.site, self.site.network
        leader = site.brokers[clients.ask("roles")["leader"]]
        silent = {Cut.LEADER: leader, Cut.STORE: site.store, Cut.CATALOG: site.catalog}
        if cut is Cut.WORKER:
            gone = site.workers[1]
            with network.cut(gone):
                gone.kill()
                yield application
            site.start_worker(gone)
        elif cut is Cut.DRIVER:
            with network.cut(application.host):
                application.host.kill()
                yield site.application(topic, site.drivers[1])
        else:
            pair = cut is Cut.BROKER_AND_WORKER
            hosts = [silent[cut]] if cut in silent else []
            with network.cut_between(leader, site.workers[0]) if pair else network.cut(*hosts):
                threading.Event().wait(cut.seconds)
            yield application


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCuts]:
    try:
        with SparkHosts(tmp_path_factory.mktemp("cuts")) as site:
            cuts = SparkCuts(site)
            yield cuts
            print(table(cuts.outcomes, SPARK))
    except Unavailable as missing:
        give_up(str(missing))


@pytest.mark.parametrize("cut", CUTS_OF_SPARK, ids=lambda cut: cut.name.lower())
def test_nothing_is_lost_or_doubled(cuts: SparkCuts, cut: Cut) -> None:
    outcome = cuts.play(cut)
    print(outcome)
    for job, found in outcome.jobs.items():
        for error in found.failures:
            print(f"{job}: {error}")
    assert not outcome.problems
