"""Connections that outlive a task: one cluster and a pool of idle fetchers per Python worker.

Spark reuses its Python workers with their module globals. So a micro-batch finds the metadata and the connections of
the one before and needs no handshake (Spark's own source pools 64 consumers for the same reason). Used by reads and
writes; a worker runs one task at a time.

All executors get the same options, but may be in different racks. So without `kafka.client.rack` a worker takes its
rack from its environment (RACK_VARIABLE), which `spark.executorEnv` or the machine can set.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.fetcher import Fetcher
from broker.protocol.topic_partition import TopicPartition

RACK_VARIABLE = "PYKAFKA_CLIENT_RACK"
"""The rack of this machine, for the client's setting client.rack (KIP-392)."""
_MAX_IDLE_FETCHERS = 64
_MAX_CLUSTERS = 4


class WorkerClients:
    """The open connections of one worker process; the least recently used are closed first."""

    def __init__(self) -> None:
        self._clusters: OrderedDict[ClientSettings, Cluster] = OrderedDict()
        self._idle: OrderedDict[tuple[ClientSettings, TopicPartition], Fetcher] = OrderedDict()
        self._producing: dict[ClientSettings, dict[Node, BrokerConnection]] = {}

    def cluster(self, settings: ClientSettings, first_contact_s: float = math.inf) -> Cluster:
        """The worker's client of the cluster that `settings` name. Tasks are patient: the driver has reached it."""
        cluster = self._clusters.get(settings)
        if cluster is None:
            rack = settings.client_rack or os.environ.get(RACK_VARIABLE, "")
            here = dataclasses.replace(settings, client_rack=rack)
            cluster = self._clusters[settings] = Cluster(here, create_topics=False, first_contact_s=first_contact_s)
        self._clusters.move_to_end(settings)
        if len(self._clusters) > _MAX_CLUSTERS:
            oldest, unused = self._clusters.popitem(last=False)
            for key in [key for key in self._idle if key[0] == oldest]:
                self._idle.pop(key).close()
            for connection in self._producing.pop(oldest, {}).values():
                connection.close()
            unused.close()
        return cluster

    @contextmanager
    def fetcher(self, settings: ClientSettings, tp: TopicPartition, topic_id: str | None = None) -> Iterator[Fetcher]:
        """A fetcher of `tp` for this block only; kept for the next task, or closed if the block raises. `topic_id`: of
        the topic to read, if it is known."""
        cluster = self.cluster(settings)
        fetcher = self._idle.pop((settings, tp), None) or Fetcher(cluster, tp, allocate=_paged_in)
        fetcher.topic_id = topic_id
        try:
            yield fetcher
        except BaseException:
            fetcher.close()
            raise
        self._idle[settings, tp] = fetcher
        if len(self._idle) > _MAX_IDLE_FETCHERS:
            self._idle.popitem(last=False)[1].close()

    def producing(self, settings: ClientSettings) -> dict[Node, BrokerConnection]:
        """Idle connections for producing, one per broker. A user takes one out and puts it, or another one, back."""
        self.cluster(settings)
        return self._producing.setdefault(settings, {})

    def close(self) -> None:
        for connections in self._producing.values():
            for connection in connections.values():
                connection.close()
        self._producing.clear()
        for fetcher in self._idle.values():
            fetcher.close()
        for cluster in self._clusters.values():
            cluster.close()
        self._idle.clear()
        self._clusters.clear()


def _paged_in(size: int) -> memoryview:
    """Memory from Arrow's pool, which reuses pages: zeroing a new page for every 4 KiB of a response takes longer than
    decoding the response."""
    import pyarrow as pa  # Spark's processes that plan and commit fetch nothing

    return memoryview(pa.allocate_buffer(size)).cast("B")


_clients: tuple[int, WorkerClients] | None = None


def worker_clients() -> WorkerClients:
    """This process's clients. A forked child gets its own, because sockets cannot be shared."""
    global _clients
    if _clients is None or _clients[0] != os.getpid():
        _clients = (os.getpid(), WorkerClients())
    return _clients[1]


_kept: int | None = None


def keep_imports() -> None:
    """Exempt the imported modules from garbage collection; called by each task of a Python worker. Otherwise Spark's
    daemon, which collects after every task, would scan them all each time, on a core that the next task waits for."""
    global _kept
    if _kept != os.getpid():
        _kept = os.getpid()
        gc.freeze()
