"""The office of controller never stays empty."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.membership import Membership
from broker.zookeeper.operations import Create, Delete, SetData
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import CONTROLLER, CONTROLLER_EPOCH
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer, expire_session
from tests.zookeeper.conftest import Connect


def test_the_first_candidate_is_controller_when_start_returns(registry: Registry) -> None:
    election = ControllerElection(registry.controller, 7)
    election.start()
    assert (registry.controller.id(), registry.controller.epoch().epoch) == (7, 1)
    election.stop()
    election.stop()
    assert registry.controller.id() == -1


def test_another_takes_over_when_the_controllers_session_ends(connect: Connect, registry: Registry) -> None:
    first, second = connect(), connect()
    ControllerElection(Registry(first).controller, 1).start()
    ControllerElection(Registry(second).controller, 2).start()
    assert (registry.controller.id(), registry.controller.epoch().epoch) == (1, 1)
    first.close()
    eventually(lambda: (registry.controller.id(), registry.controller.epoch().epoch) == (2, 2))


def test_a_lone_controller_is_controller_again_after_its_session_expired(zk: ZooKeeper, registry: Registry) -> None:
    ControllerElection(registry.controller, 1).start()
    expire_session(zk)
    eventually(lambda: (registry.controller.id(), registry.controller.epoch().epoch) == (1, 2))
    assert registry.controller.elect(1) == (2, 2)  # it is ours in the new session


def test_a_controller_whose_epoch_changed_without_its_knowledge_learns_it(zk: ZooKeeper, registry: Registry) -> None:
    """Its transaction was applied, and the answer was lost. Writes in the old epoch would be refused for ever."""
    election = ControllerElection(registry.controller, 1)
    election.start()
    before = election.epoch
    epoch = registry.controller.epoch()
    node = zk.get(CONTROLLER)[0]
    zk.transaction(
        [Delete(CONTROLLER), Create(CONTROLLER, node, ephemeral=True), SetData(CONTROLLER_EPOCH, b"2", epoch.version)]
    )
    eventually(lambda: election.epoch == registry.controller.epoch() != before)


class Unsteady(LocalStore):
    """A store that was lost just before some looks at whose session it is, and is back at the next read."""

    losses = 0

    @property
    def session_id(self) -> int:
        self.losses -= 1
        return 0 if self.losses >= 0 else super().session_id


@pytest.fixture
def unsteady(tmp_path: Path) -> Iterator[Unsteady]:
    with Unsteady(tmp_path / "metadata") as store:
        Registry(store).ensure_paths()
        yield store


def test_a_controller_that_loses_zookeeper_while_it_looks_has_no_rival_in_itself(unsteady: Unsteady) -> None:
    controller = Registry(unsteady).controller
    elected = controller.elect(1)
    unsteady.losses = 2
    assert controller.elect(1) == elected == controller.epoch()


def test_a_broker_that_loses_zookeeper_while_it_looks_is_not_refused_its_own_node(unsteady: Unsteady) -> None:
    registry = Registry(unsteady)
    for port in (1, 2):
        registry.register_broker(BrokerInfo.plaintext(1, "h", port))
        unsteady.losses = 2
    assert registry.brokers()[1].port == 2


def test_a_broker_that_has_stopped_stands_no_more(connect: Connect, registry: Registry) -> None:
    other = connect()
    Registry(other).controller.elect(2)
    election = ControllerElection(registry.controller, 1)
    election.start()
    election.stop()
    other.close()
    changes: queue.Queue[int] = queue.Queue()
    registry.controller.watch(changes.put)
    eventually(lambda: changes.get(timeout=60) == -1)
    assert registry.controller.id() == -1


def test_stopping_does_not_wait_for_a_zookeeper_that_is_gone(server: ZooKeeperServer) -> None:
    with ZooKeeper(server.address, session_timeout_ms=4000, connection_timeout_ms=60_000) as zk:
        info = BrokerInfo.plaintext(1, "h", 1)
        membership, election = Membership(zk, Registry(zk), info), ControllerElection(Registry(zk).controller, 1)
        membership.start()
        election.start()
        server.kill()
        eventually(lambda: not zk.connected)
        began = time.monotonic()
        election.stop()
        membership.stop()
        assert time.monotonic() - began < 20  # one operation takes 30 s then
