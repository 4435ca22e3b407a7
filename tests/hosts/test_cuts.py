"""Clients work on hosts of their own, and one after the other links are cut: nothing is lost or doubled.

A producer, a group and the archive work at one topic all the time. Each test cuts links so that packets vanish, heals
them, waits until all replicas are in sync, and has another client count what there is. The table that is printed at the
end is that of docs/promises.md. Ten minutes, most of them in cuts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.support.host_counts import Numbers
from tests.support.host_cuts import CLIENTS, CUTS_OF_CLIENTS, Cut, Found, Outcome, judge, table
from tests.support.hosts import Host
from tests.support.many_hosts import ManyHosts
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

_TOPIC = "cut"
_PATIENCE_S = 100
_AFTER_S = 3


class Cuts:
    """The hosts, and the clients at work."""

    def __init__(self, site: ManyHosts) -> None:
        self.site = site
        self.clients = site.clients(_TOPIC)
        self.outcomes: list[Outcome] = []
        eventually(lambda: site.found(_TOPIC)[2] > 0, 2 * _PATIENCE_S, 1.0)  # some has left the disks

    def play(self, cut: Cut) -> Outcome:
        self.clients.ask("reset")
        with self._cut(cut):
            threading.Event().wait(cut.seconds)
        eventually(lambda: self.clients.ask("healed"), _PATIENCE_S, 0.5)
        threading.Event().wait(_AFTER_S)
        acknowledged = Numbers.of_json(self.clients.ask("acknowledged")).found
        pauses = self.clients.ask("pauses")
        topic, archive, archived = self.site.found(_TOPIC)
        assert self.clients.ask("failed") == []
        counts = {
            "producer": judge(topic, acknowledged),
            "group": judge(self._read(acknowledged), acknowledged),
            "archive": ([0] * (archived - len(archive.found)), list(archive.doubled)),
        }
        self.outcomes.append(
            Outcome(cut, len(acknowledged), {job: Found(*counts[job], pauses[job]) for job in CLIENTS})
        )
        return self.outcomes[-1]

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
        }
        other = next(host for host in site.brokers.values() if host is not roles["leader"])
        apart = network.cut_between(roles["leader"], other) if cut is Cut.BROKERS else network.cut(*hosts.get(cut, []))
        with apart:
            yield


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuts]:
    try:
        with ManyHosts(tmp_path_factory.mktemp("cuts")) as site:
            cuts = Cuts(site)
            yield cuts
            print(table(cuts.outcomes, CLIENTS))
    except Unavailable as missing:
        give_up(str(missing))


@pytest.mark.parametrize("cut", CUTS_OF_CLIENTS, ids=lambda cut: cut.name.lower())
def test_nothing_is_lost_or_doubled(cuts: Cuts, cut: Cut) -> None:
    outcome = cuts.play(cut)
    print(outcome)
    assert not outcome.problems
