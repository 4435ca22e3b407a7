"""The controller of a cluster and its epoch, the number of controllers that there were before and with this one.

No Kafka API tells the epoch of a cluster with ZooKeeper, so it is read where brokers keep it: in `/controller_epoch`
of the ZooKeeper that their setting `zookeeper.connect` names. In a KRaft cluster it is the leader epoch of the
controllers' quorum (DescribeQuorum).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from broker.client.admin import Admin
from broker.errors import ConfigError, ConnectionFailed, PykafkaError, UnsupportedVersion
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.connect_string import ConnectString

_ZOOKEEPER_S = 2.0
_SESSION_MS = 4000

T = TypeVar("T")


class Controller(NamedTuple):
    """`id` is -1 while there is none. `epoch` is None if it could not be read; `problem` says why.

    Neither epoch nor problem: a standalone broker, which has no other controllers.
    """

    id: int
    epoch: int | None = None
    problem: str | None = None


def find_controller(admin: Admin, settings: Mapping[str, str | None]) -> Controller:
    """`settings` are those of a broker. Takes at most a few seconds, and never fails for the sake of the epoch."""
    id = admin.cluster.controller_id()
    try:
        return Controller(*admin.cluster.retrying(admin.quorum_leader, timeout_s=0))
    except UnsupportedVersion:
        pass
    except PykafkaError as error:
        return Controller(id, None, str(error))
    if settings.get("standalone") == "true":
        return Controller(id)
    connect = settings.get("zookeeper.connect")
    if not connect:
        return Controller(id, None, "the brokers do not say where their ZooKeeper is")
    cluster_id = admin.cluster.cluster_id()
    try:
        return Controller(id, _within(_ZOOKEEPER_S, lambda: _read_epoch(connect, cluster_id)))
    except (ConnectionFailed, TimeoutError):
        return Controller(id, None, f"no answer from ZooKeeper at {connect}")
    except (PykafkaError, ValueError) as error:
        return Controller(id, None, str(error))


def _read_epoch(connect: str, cluster_id: str | None) -> int:
    """Raises ConfigError when the ZooKeeper is another cluster's, as `localhost` of another machine may be."""
    place = ConnectString.parse(connect)
    paths = [place.chroot + node for node in (znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH)]
    listening = ConnectString(tuple(server for server in place.servers if _accepts(server)))
    if not listening.servers:  # a client would go on trying
        raise ConnectionFailed(f"{connect}: no server accepts connections")
    # without the chroot, which a session would create
    with ZooKeeper(listening.hosts, _SESSION_MS, round(_ZOOKEEPER_S * 1000), _ZOOKEEPER_S) as zookeeper:
        found, epoch = zookeeper.get_many(paths)
    if found is None or epoch is None or znodes.decode_cluster_id(found[0]) != cluster_id:
        raise ConfigError(f"ZooKeeper at {connect} does not have this cluster")
    return int(epoch[0])


def _accepts(server: tuple[str, int]) -> bool:
    host, port = server
    try:
        socket.create_connection((host.strip("[]"), port), timeout=_ZOOKEEPER_S / 2).close()
    except OSError:
        return False
    return True


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Raises TimeoutError when the call takes longer. Its thread is left behind then, and ends with the process."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="controller-epoch", daemon=True).start()
    return answer.result(seconds)
