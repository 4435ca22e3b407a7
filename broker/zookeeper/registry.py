"""What brokers keep in ZooKeeper, by Kafka's paths and JSON (kafka.zk.KafkaZkClient), topics excepted.

Used by the server, membership.py and the handlers that create and alter topics, all from worker threads: every
method blocks for at least one round trip, and raises ConnectionFailed when ZooKeeper does not answer in time.
Callbacks of `watch_*` come on the client's event thread: soon after the call, after each change (several may come
as one) and after each reconnection; they may call back into the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from broker.clock import Clock, SystemClock
from broker.protocol.topic_names import check_topic_name
from broker.zookeeper import znodes
from broker.zookeeper.client import Watch, ZooKeeper
from broker.zookeeper.cluster_metadata import ClusterMetadata, Topic
from broker.zookeeper.operations import BadVersion, Create, NodeExists, NodeStat, NoNode, SetData
from broker.zookeeper.topic_registry import TopicRegistry
from broker.zookeeper.znodes import BrokerInfo, Endpoint, PartitionState, TopicRecord

__all__ = [
    "PRODUCER_ID_BLOCK_SIZE",
    "BrokerInfo",
    "Endpoint",
    "PartitionState",
    "Registry",
    "TopicRecord",
    "check_topic_name",
]

PRODUCER_ID_BLOCK_SIZE = 1000
DEFAULT_RESERVED_BROKER_MAX_ID = 1000


class Registry(TopicRegistry):
    """The cluster's shared memory. Topics and partition states are in the base class."""

    def __init__(self, zk: ZooKeeper, clock: Clock | None = None) -> None:
        super().__init__(zk)
        self._clock = clock or SystemClock()

    def ensure_paths(self) -> None:
        """Create the persistent nodes that everything else lies below, as far as they are missing."""
        found = self._zk.get_many(znodes.PERSISTENT_PATHS)
        for path, node in zip(znodes.PERSISTENT_PATHS, found, strict=True):
            if node is None:
                self._zk.ensure_path(path)

    def cluster_id(self) -> str:
        """The id of the cluster, made up by the first broker that asks."""
        try:
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        except NoNode:
            try:
                made_up = znodes.encode_cluster_id(znodes.uuid_to_text(znodes.new_uuid()))
                self._zk.create(znodes.CLUSTER_ID, made_up, parents=True)
            except NodeExists:
                pass
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        return znodes.decode_cluster_id(data)

    # -- brokers

    def generate_broker_id(self, reserved_max_id: int = DEFAULT_RESERVED_BROKER_MAX_ID) -> int:
        """A new id above `reserved.broker.max.id`, for `broker.id=-1`. Never the same twice in one cluster."""
        self._zk.ensure_path(znodes.BROKER_SEQUENCE_ID)
        return reserved_max_id + self._zk.set(znodes.BROKER_SEQUENCE_ID, b"").version

    def register_broker(self, info: BrokerInfo) -> None:
        """Create the ephemeral `/brokers/ids/N`, or renew the one that this session holds.

        Raises NodeExists when another session holds it; membership.py knows what to do then.
        """
        path = znodes.broker_path(info.broker_id)
        try:
            self._zk.create(path, info.encode(), ephemeral=True, parents=True)
        except NodeExists:
            stat = self._zk.exists(path)
            if stat is None:
                return self.register_broker(info)
            if stat.ephemeral_owner != self._zk.session_id:
                raise
            self._zk.set(path, info.encode(), stat.version)

    def unregister_broker(self, broker_id: int) -> None:
        """Delete the node of a broker if it is there, whoever holds it."""
        try:
            self._zk.delete(znodes.broker_path(broker_id))
        except NoNode:
            pass

    def broker_node(self, broker_id: int) -> tuple[BrokerInfo, NodeStat] | None:
        """A registered broker and the facts of its node, among them the session that holds it."""
        try:
            data, stat = self._zk.get(znodes.broker_path(broker_id))
        except NoNode:
            return None
        return BrokerInfo.decode(broker_id, data), stat

    def brokers(self) -> dict[int, BrokerInfo]:
        """All registered brokers by id, in order."""
        return self._read_brokers(self._children(znodes.BROKER_IDS))

    def watch_brokers(self, callback: Callable[[dict[int, BrokerInfo]], None]) -> Watch:
        """Call back with all registered brokers whenever one comes or goes."""
        return self._zk.watch_children(znodes.BROKER_IDS, lambda ids: callback(self._read_brokers(ids)))

    def _read_brokers(self, names: Collection[str]) -> dict[int, BrokerInfo]:
        ids = sorted(int(name) for name in names)
        nodes = self._zk.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        found = zip(ids, nodes, strict=True)
        return {broker_id: BrokerInfo.decode(broker_id, node[0]) for broker_id, node in found if node is not None}

    def broker_configs(self, broker_id: int) -> tuple[dict[str, str], dict[str, str]]:
        """Settings altered for all brokers, and for one; empty when there are none."""
        paths = [znodes.broker_config_path(entity) for entity in (znodes.ALL_BROKERS, broker_id)]
        nodes = zip(paths, self._zk.get_many(paths), strict=True)
        shared, own = (znodes.decode_config(path, node[0] if node else b"") for path, node in nodes)
        return shared, own

    def alter_broker_config(self, entity: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some settings of a broker (its id) or of all (ALL_BROKERS), take away those whose new value is None."""
        return self._alter_config(znodes.broker_config_path(entity), changes)

    # -- users

    def user_configs(self) -> dict[str, dict[str, str]]:
        """What is kept of each user, SCRAM credentials and quotas alike, by his own name."""
        nodes = self._children(znodes.USER_CONFIGS)
        paths = [znodes.user_config_path(node) for node in nodes]
        found = zip(nodes, paths, self._zk.get_many(paths), strict=True)
        return {
            znodes.desanitized(node): _secret_config(path, read[0])
            for node, path, read in found
            if read is not None and node != znodes.ALL_BROKERS
        }

    def alter_user_config(self, user: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some of what is kept of a user, take away what is None; what he has then."""
        return self._alter_config(znodes.user_config_path(znodes.sanitized(user)), changes)

    # -- the controller

    def elect_controller(self, broker_id: int) -> int | None:
        """Try to become the controller: the new controller epoch, or None when another broker is it already.

        Node and epoch change in one transaction. When this session is the controller, its epoch comes back.
        """
        while True:
            epoch, version = self._read_controller_epoch()
            node = znodes.encode_controller(broker_id, self._clock.now_ms())
            try:
                self._zk.transaction(
                    [
                        Create(znodes.CONTROLLER, node, ephemeral=True),
                        SetData(znodes.CONTROLLER_EPOCH, str(epoch + 1).encode(), version),
                    ]
                )
                return epoch + 1
            except BadVersion:
                continue
            except NodeExists:
                stat = self._zk.exists(znodes.CONTROLLER)
                if stat is not None:
                    return self.controller_epoch() if stat.ephemeral_owner == self._zk.session_id else None

    def resign_controller(self) -> None:
        """Stop being the controller, if this session is it. While ZooKeeper is away nothing is done, at once."""
        if not self._zk.connected:
            return
        stat = self._zk.exists(znodes.CONTROLLER)
        if stat is not None and stat.ephemeral_owner == self._zk.session_id:
            try:
                self._zk.delete(znodes.CONTROLLER)
            except NoNode:
                pass

    def controller_id(self) -> int:
        """Id of the controller, -1 when there is none."""
        try:
            return znodes.decode_controller(self._zk.get(znodes.CONTROLLER)[0])
        except NoNode:
            return -1

    def controller_epoch(self) -> int:
        """How many controllers there have been; 0 when none yet."""
        return self._read_controller_epoch()[0]

    def watch_controller(self, callback: Callable[[int], None]) -> Watch:
        """Call back with the controller's id (-1: none) whenever it changes."""
        return self._zk.watch_data(
            znodes.CONTROLLER, lambda data, _: callback(-1 if data is None else znodes.decode_controller(data))
        )

    def _read_controller_epoch(self) -> tuple[int, int]:
        try:
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            try:
                self._zk.create(znodes.CONTROLLER_EPOCH, b"0")
            except NodeExists:
                pass
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        return int(data), stat.version

    # -- producer ids

    def allocate_producer_ids(self, broker_id: int) -> range:
        """The next block of PRODUCER_ID_BLOCK_SIZE producer ids, given to this broker alone, ever
        (kafka.coordinator.transaction.ZkProducerIdManager)."""
        while True:
            try:
                data, stat = self._zk.get(znodes.PRODUCER_ID_BLOCK)
            except NoNode:
                self._zk.ensure_path(znodes.PRODUCER_ID_BLOCK)
                continue
            first = znodes.decode_producer_id_block_end(data) + 1 if data else 0
            block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
            try:
                node = znodes.encode_producer_id_block(broker_id, block[0], block[-1])
                self._zk.set(znodes.PRODUCER_ID_BLOCK, node, stat.version)
                return block
            except BadVersion:
                continue  # another broker was faster

    # -- all of it

    def load_metadata(
        self, previous: ClusterMetadata | None = None, *, reload: Collection[str] = ()
    ) -> ClusterMetadata:
        """The cluster as ZooKeeper has it now.

        With `previous`, topics it knows are taken from there unless named in `reload`, so that a change costs what
        changed; topics that are gone or new are noticed by name.
        """
        names = self.topic_names()
        kept = {
            name: topic
            for name in names
            if previous is not None and name not in reload and (topic := previous.topics.get(name)) is not None
        }
        loaded = self.load_topics([name for name in names if name not in kept])
        topics: dict[str, Topic] = {**kept, **loaded}
        return ClusterMetadata(
            cluster_id=previous.cluster_id if previous else self.cluster_id(),
            controller_id=self.controller_id(),
            brokers=self.brokers(),
            topics={name: topics[name] for name in names if name in topics},
        )


def _secret_config(path: str, data: bytes) -> dict[str, str]:
    """The config of a user, which no error may show."""
    try:
        return znodes.decode_config(path, data)
    except znodes.MalformedNode:
        raise znodes.MalformedNode(path, b"(hidden)", "it is not Kafka's JSON for a config") from None
