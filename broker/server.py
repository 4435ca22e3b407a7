"""The broker: starts its parts in order, and stops them in reverse.

`pykafka broker start` runs one in the foreground. Start: bind the listeners, connect to ZooKeeper (or start an embedded
one), recover the logs, register, load the groups, serve. Stop is the reverse, and leaves the mark of a clean shutdown.
Each part says how it stops when it starts (`_on_stop`). If one fails to stop, the others stop all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.api.check_threads import CheckThreads
from broker.api.context import ApiContext
from broker.api.fetch_sessions import FetchSessionCache
from broker.api.share_offsets import OffsetReset
from broker.api.table import make_routes
from broker.background_tasks import BackgroundTasks, name_of
from broker.clock import Clock, SystemClock
from broker.cluster.acls import Acls
from broker.cluster.authorizer_settings import make_authorizer
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.cluster_watch import ClusterWatch
from broker.cluster.controlled_shutdown import hand_over
from broker.cluster.controller import Controller
from broker.cluster.delegation_tokens import DelegationTokens
from broker.cluster.failure_detector import FailureDetector
from broker.cluster.features import SUPPORTED, Features
from broker.cluster.group_backup import GroupBackup
from broker.cluster.group_configs import GroupConfigs
from broker.cluster.isr_writer import IsrWriter
from broker.cluster.leadership_check import LeadershipCheck
from broker.cluster.local_replicas import LocalReplicas
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.partition_reassignments import PartitionReassignments
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.quota_configs import QuotaConfigs
from broker.cluster.topic_changes import TopicChanges
from broker.cluster.users import Users
from broker.cluster.zookeeper_offsets import ZooKeeperOffsets
from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.config.listener import Listener, advertised_listeners
from broker.coordinator.coordinators import Coordinators
from broker.coordinator.restored_offsets import RestoredOffsets
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.meta_properties import stored_broker_id
from broker.metrics import Metrics
from broker.net.listener import ListenerSet
from broker.net.peer_connection import PeerConnection
from broker.net.peer_security import peer_security
from broker.net.request_log import RequestLog
from broker.net.router import Router
from broker.net.throttling import Throttling
from broker.protocol.permissions import FETCH_AS_FOLLOWER
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.client_quotas import ClientQuotas
from broker.replica.cluster_metadata import BrokerInfo, Endpoint
from broker.replica.replica_manager import ReplicaManager
from broker.share.share_runtime import ShareRuntime
from broker.web.collector import MetricSources
from broker.web.health import Health
from broker.web.http_listener import HttpListener
from broker.zookeeper.acl_store import AclStore
from broker.zookeeper.archive_nodes import ArchiveNodes
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.embedded_server import EmbeddedZooKeeper, ZooKeeperSupervisor
from broker.zookeeper.membership import Membership
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.opened_store import ZOOKEEPER_DIRECTORY, open_store
from broker.zookeeper.registry import Registry

if TYPE_CHECKING:
    from broker.archive.broker_archive import BrokerArchive
    from broker.cluster.archive_upkeep import ArchiveUpkeep

logger = logging.getLogger(__name__)

SESSION_FILE = "zookeeper.session"
PEER_TIMEOUT_S = 5.0
"""How long a coordinator waits for the answer of another broker before it asks again."""


class BrokerServer:
    """One broker. `start` returns when it serves. `stop` may be called at any time after that call began."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self.embedded_zookeeper = ""
        """`host:port` of the embedded ZooKeeper, if this broker started one."""
        self.metrics_url = ""
        """URL of /metrics and /healthz when `metrics.listener` is set."""
        self._http: HttpListener | None = None
        self._metrics = Metrics()
        self._check_threads = CheckThreads()
        self._listeners = ListenerSet(config, self._metrics, self._clock)
        self._directories = [Path(text) for text in config.log_dirs]
        self._logs = LogManager(
            self._directories,
            self._clock,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            producer_expiration_ms=config.producer_id_expiration_ms,
            cleaner=config,
        )
        self._replicas = LocalReplicas(self._logs)
        self._tasks = BackgroundTasks()
        self._dynamic = DynamicConfig(config)
        self._quotas = ClientQuotas(
            config.quota_window_num,
            config.quota_window_size_seconds,
            config.controller_quota_window_num,
            config.controller_quota_window_size_seconds,
            config.quota_burst_ms / 1000,
        )
        self._peers, self._isolation = peer_security(config)
        """How this broker connects to others, and what it would need to, if that is not set."""
        self._store: MetadataStore | None = None
        self._acls: Acls | None = None
        self._archive: BrokerArchive | None = None
        self._upkeep: ArchiveUpkeep | None = None
        self._parts = contextlib.AsyncExitStack()

    async def start(self) -> list[Listener]:
        """Start all parts and return the bound listeners. Stops what it started before it raises PykafkaError."""
        try:
            bound = await self._start()
        except BaseException:
            self._end_patience()
            with contextlib.suppress(Exception):  # it is logged, and the first error tells more
                await self.stop()
            raise
        self._end_patience()
        return bound

    def _end_patience(self) -> None:
        """From here on the store's calls end when it does not answer in time."""
        if self._store is not None:
            self._store.patient = False

    async def stop(self) -> None:
        """Hand over leadership, close connections, leave ZooKeeper and stop an embedded one, flush and mark the logs.

        A part that fails to stop is logged, and keeps no other from stopping. Raises the last such error.
        """
        await self._parts.aclose()

    def _on_stop(self, stop: Callable[[], Awaitable[object] | None]) -> None:
        """Call `stop` when the broker stops: before what was given earlier, and after what is given later."""

        async def logged() -> None:
            try:
                waiting = stop()
                if waiting is not None:
                    await waiting
            except Exception:
                logger.exception("the broker goes on to stop, though this failed: %s", name_of(stop))
                raise

        self._parts.push_async_callback(logged)

    def _on_stop_blocking(self, stop: Callable[[], object]) -> None:
        """As `_on_stop`, for what blocks."""
        self._on_stop(functools.partial(asyncio.to_thread, stop))

    async def _start(self) -> list[Listener]:
        """The parts, in order. When one of them starts, those above it serve already."""
        bound = self._bind()
        self._on_stop_blocking(self._logs.close)
        await self._connect(bound)
        self._on_stop(self._cluster.close)
        await self._open_archive()
        await self._load_topics()
        await self._start_coordinators()
        self._on_stop(self._tasks.close)
        self._on_stop(self._check_threads.close)
        self._on_stop(self._coordinators.disconnect)
        self._on_stop(self._share.close)
        await self._load_configs()
        self._start_failure_detector()
        self._start_isr_writer()
        self._start_watch()
        await self._start_controller()
        await self._start_archive_upkeep()
        self._on_stop(self._close_listeners)
        self._on_stop(self._hand_over)
        await self._listeners.serve(self._router(), self._users.credential, self._delegation_tokens.login)
        self._tasks.begin("periodic work", self._tick_forever())
        self._serve_http()
        await asyncio.to_thread(self._replicas.end)
        return bound

    # --- the parts

    def _bind(self) -> list[Listener]:
        self._on_stop(self._close_listeners)
        bound = self._listeners.bind()
        self._name_bound_ports(bound)
        if self.config.metrics_listener:
            self._http = HttpListener(self.config.metrics_listener, self.config.metrics_credentials())
            self.metrics_url = self._http.url
        return bound

    async def _close_listeners(self) -> None:
        """Idempotent: the first part of a broker that is there, and the first to go of one that serves."""
        try:
            if self._http is not None:
                self._http.close()
        finally:
            await self._listeners.close()

    def _name_bound_ports(self, bound: list[Listener]) -> None:
        """A listener with port 0 gets a free port: from now on the settings name that port."""
        advertised = self.config.parsed_advertised()
        if all(one.port for one in (*self.config.parsed_listeners(), *advertised)):
            return
        self._replace_config(
            listeners=tuple(map(str, bound)),
            advertised_listeners=tuple(map(str, advertised_listeners(bound, advertised) if advertised else ())),
        )

    def _replace_config(self, **found: Any) -> None:
        """Set settings whose values are known only while the broker starts, so that DescribeConfigs tells them."""
        self.config = dataclasses.replace(self.config, **found)
        self._dynamic = DynamicConfig(self.config)

    async def _connect(self, bound: list[Listener]) -> None:
        """Run `_connect_blocking` in a thread. When the start is cancelled, wait until that thread has ended."""
        connecting = asyncio.ensure_future(asyncio.to_thread(self._connect_blocking, bound))
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if self._store is not None:
                await asyncio.to_thread(self._store.close)
            await asyncio.gather(connecting, return_exceptions=True)
            raise

    def _connect_blocking(self, bound: list[Listener]) -> None:
        """Open the metadata store, load the logs (their settings are in the store), and register."""
        replicas = self._replicas
        replicas.confirm()
        store = open_store(
            self.config, self._directories, self._clock, self._start_store, self._start_embedded_zookeeper
        )
        registry = Registry(store, self._clock)
        registry.ensure_paths()
        if self.config.broker_id < 0:
            self._set_broker_id(registry)
        if self._isolation is not None and registry.brokers().keys() - {self.config.broker_id}:
            raise self._isolation
        replicas.claim(self.config.broker_id, registry.cluster_id(), registry.topics())
        self._dynamic.apply(*registry.broker_configs(self.config.broker_id))
        deleted = registry.deletions.noted(self.config.broker_id)
        replicas.load(LogConfig.from_properties(self._dynamic.current.topic_defaults()), deleted)
        membership = Membership(store, registry, self._info(bound), session_file=replicas.online[0] / SESSION_FILE)
        self._on_stop_blocking(membership.stop)
        changed: list[TopicPartition] = []
        membership.start(lambda: changed.extend(replicas.rejoin(registry, self.config.broker_id)))
        replicas.record_boot()
        self._cluster = ClusterStore(registry, ChangeNotifications(store))
        if changed and len(registry.brokers()) > 1:
            self._cluster.changes.notify_isr_change(changed)
        registry.deletions.resume(allowed=self.config.delete_topic_enable)
        self._election = ControllerElection(registry.controller, self.config.broker_id)
        self._on_stop_blocking(self._election.stop)
        self._election.start()

    def _start_store(self, store: MetadataStore) -> MetadataStore:
        self._store = store  # so that a start that is cancelled can close it
        self._on_stop_blocking(store.close)
        return store.start()

    def _start_embedded_zookeeper(self) -> str:
        supervisor = ZooKeeperSupervisor(
            EmbeddedZooKeeper(self._directories[0] / ZOOKEEPER_DIRECTORY, self.config.embedded_zookeeper_port)
        )
        self._on_stop_blocking(supervisor.stop)
        self.embedded_zookeeper = supervisor.start()
        self._replace_config(zookeeper_connect=self.embedded_zookeeper)
        return self.embedded_zookeeper

    def _set_broker_id(self, registry: Registry) -> None:
        """For `broker.id=-1`: the id in the log directories, or a new one."""
        stored = stored_broker_id(self._directories)
        broker_id = registry.generate_broker_id() if stored is None else stored
        self._replace_config(broker_id=broker_id)
        logger.info("broker.id is %d", broker_id)

    def _info(self, bound: list[Listener]) -> BrokerInfo:
        advertised = advertised_listeners(bound, self.config.parsed_advertised())
        endpoints = tuple(Endpoint(a.name, a.host, a.port) for a in advertised)
        protocols = {a.name: a.protocol for a in advertised}
        return BrokerInfo(
            self.config.broker_id,
            endpoints,
            protocols,
            self.config.broker_rack,
            timestamp_ms=self._clock.now_ms(),
            features=SUPPORTED,
        )

    async def _open_archive(self) -> None:
        if not self.config.archive_url:
            return
        # fsspec and its like behind it, for brokers with an archive
        from broker.archive.broker_archive import open_archive

        cluster_id = await self._cluster(self._cluster.registry.cluster_id)
        self._archive = archive = await asyncio.to_thread(open_archive, self.config, cluster_id, self._clock)
        self._on_stop_blocking(archive.reader.close)
        self._on_stop(archive.manager.close)

    async def _load_topics(self) -> None:
        archive = None if self._archive is None else self._archive.manager
        replicas = ReplicaManager(self._dynamic.current, self._logs, peers=self._peers, archive=archive)
        metadata = await asyncio.to_thread(self._cluster.registry.load_metadata)
        self._topics = MetadataCache(self._cluster, replicas, metadata)
        self._on_stop(self._topics.close)
        await self._topics.deleted_topics.delete_left_logs()
        self._topic_changes = TopicChanges(self._dynamic.current, self._cluster, self._topics)

    async def _start_coordinators(self) -> None:
        self._ids = ProducerIds(lambda: self._cluster.registry.allocate_producer_ids(self.config.broker_id))
        assert self._store is not None
        self._group_configs = GroupConfigs(self._dynamic, self._cluster)
        await self._group_configs.refresh()
        restored = await RestoredOffsets.left_in(self._cluster, ArchiveNodes(self._store), self._clock)
        configs, peer = self._group_configs, self._coordinator_peer
        reset = OffsetReset(configs, self._clock)
        self._share = ShareRuntime(
            self.config,
            self._topics,
            self._topic_changes,
            self._clock,
            peer,
            configs,
            reset,
            lambda: self._dynamic.current,
        )
        others = {SHARE_STATE_TOPIC: self._share.coordinator}
        self._coordinators = Coordinators(
            self.config,
            self._topics,
            self._ids,
            self._clock,
            self._coordinator_peer,
            restored,
            others,
            self._group_configs.of,
            self._is_store_connected,
        )
        self._on_stop(self._coordinators.close)
        self._on_stop(self._topics.close)  # what the coordinators wait for would not end before that
        await self._coordinators.start()
        self._share.serve(self._coordinators.groups)

    async def _load_configs(self) -> None:
        """Read what altered settings, users, ACLs and quotas there are. From now on they can be altered."""
        self._configs = BrokerConfigs(self._dynamic, self._cluster)
        self._dynamic.subscribe(self._topics.replicas.update_config)
        self._dynamic.subscribe(self._logs.update_broker_config)
        self._dynamic.subscribe(self._listeners.update_config)
        if self._archive is not None:
            self._dynamic.subscribe(self._archive.manager.update_config)
        self._users = Users(self._cluster)
        await self._users.refresh()
        assert self._store is not None
        self._delegation_tokens = DelegationTokens(self._store, self._cluster, self.config, self._clock)
        await self._delegation_tokens.load()
        await self._load_acls()
        self._quota_configs = QuotaConfigs(self._cluster, clients=self._quotas, connections=self._listeners.rates)
        await self._quota_configs.refresh()

    async def _load_acls(self) -> None:
        """Read the ACLs, and follow their changes, if there is an authorizer."""
        later = asyncio.get_running_loop().call_soon
        self._authorizer = make_authorizer(self.config, is_isolated=self._isolation is not None, later=later)
        if self._authorizer.acls is None:
            return
        assert self._store is not None
        store = AclStore(self._store)
        allow_if_none = self.config.allow_everyone_if_no_acl_found
        self._acls = Acls(store, self._cluster, self._authorizer, allow_if_none=allow_if_none)
        await self._cluster(store.ensure_paths)
        for watch in self._acls.watch():
            self._on_stop_blocking(watch.cancel)
        await self._acls.load()
        self._tasks.begin("following ACLs", self._acls.run())

    def _start_failure_detector(self) -> None:
        connect = functools.partial(self._peer, purpose="failure-detector")
        self._detector = FailureDetector(self.config.broker_id, connect, self._clock)
        self._on_stop(self._detector.close)
        self._detector.update_brokers(self._topics.metadata.brokers)
        self._topics.add_change_listener(lambda _: self._detector.update_brokers(self._topics.metadata.brokers))

    def _start_isr_writer(self) -> None:
        writer = IsrWriter(
            self._cluster,
            self._topics,
            self._detector,
            interval_s=self.config.replica_lag_time_max_ms / 2000,
            metrics=self._metrics.replication,
        )
        writer.start()
        self._tasks.begin("writing ISRs", writer.run())

    def _start_watch(self) -> None:
        """Follow what other brokers change."""
        watch = ClusterWatch(self._cluster, self._topics, self._configs)
        watch.add_config_listener("users", self._users.refresh)
        self._quota_configs.watch(watch)
        self._group_configs.watch(watch)
        if self._acls is not None:
            watch.add_config_listener("acls", self._acls.load)
        for started in (*watch.start(), *self._delegation_tokens.watch(watch)):
            self._on_stop_blocking(started.cancel)
        self._tasks.begin("following changes of the cluster", watch.run())
        connect = functools.partial(self._peer, purpose="leadership-check", timeout_s=PEER_TIMEOUT_S)
        check = LeadershipCheck(self._topics, connect, self._is_store_connected)
        self._tasks.begin("asking other brokers who leads", check.run())

    async def _start_controller(self) -> None:
        """From now on this broker acts whenever it is the controller."""
        assert self._store is not None
        self._features = Features(self._store, self._cluster, self._topics)
        await self._features.load()
        metrics, features = self._metrics.replication, self._features
        self._controller = Controller(
            self._election, self._cluster, self._topics, self._dynamic, self._detector, metrics, features
        )
        self._on_stop_blocking(self._controller.start().cancel)
        self._on_stop_blocking(self._features.start(self._controller.look_at_all, self._listeners.outdate).cancel)
        self._reassignments = PartitionReassignments(self._controller, self._topics, self._cluster)
        self._on_stop_blocking(self._reassignments.start().cancel)
        self._tasks.begin("reassigning partitions", self._reassignments.run())
        self._tasks.begin("the controller", self._controller.run())
        if self._delegation_tokens.enabled:
            sweeping = self._delegation_tokens.run(lambda: self._election.epoch is not None)
            self._tasks.begin("removing expired delegation tokens", sweeping)

    async def _start_archive_upkeep(self) -> None:
        """Keep backups of the cluster in its archive whenever this broker is the controller."""
        if self._archive is None:
            return
        # fsspec behind them, for brokers with an archive
        from broker.cluster.archive_upkeep import ArchiveUpkeep
        from broker.cluster.archived_topics import ArchivedTopics

        assert self._store is not None
        storage, cluster_id, nodes = self._archive.storage, self._topics.metadata.cluster_id, ArchiveNodes(self._store)
        self._topic_changes.archives = ArchivedTopics(storage, cluster_id, nodes, self._cluster.registry)
        connect = functools.partial(self._peer, purpose="archive-upkeep", timeout_s=PEER_TIMEOUT_S)
        groups = functools.partial(GroupBackup, self._topics, connect)
        self._upkeep = upkeep = ArchiveUpkeep(
            storage, self._store, self._cluster, self._topics, self._election, groups, self.config, self._clock
        )
        self._on_stop(upkeep.close)
        self._tasks.begin("keeping backups in the archive", upkeep.run())

    def _archive_problem(self) -> str:
        """Why copies or backups do not go on; empty while they do."""
        problems = [
            "" if self._archive is None else self._archive.manager.problem,
            "" if self._upkeep is None else self._upkeep.problem,
        ]
        return "; ".join(filter(None, problems))

    async def _hand_over(self) -> None:
        """Let others lead, while this broker still serves and ZooKeeper answers (P9)."""
        if self.config.controlled_shutdown_enable and self._is_store_connected():
            await hand_over(self._topics, self._cluster, self._election, self._detector)

    def _router(self) -> Router:
        context = ApiContext(
            configs=self._configs,
            clock=self._clock,
            broker_id=self.config.broker_id,
            topics=self._topics,
            topic_changes=self._topic_changes,
            logs=self._logs,
            groups=self._coordinators.groups,
            transactions=self._coordinators.transactions,
            verifier=self._coordinators.verifier,
            share=self._share,
            markers=self._coordinators.markers,
            producer_ids=self._ids,
            users=self._users,
            delegation_tokens=self._delegation_tokens,
            quota_configs=self._quota_configs,
            group_configs=self._group_configs,
            controller=self._controller,
            reassignments=self._reassignments,
            fetch_sessions=FetchSessionCache(
                self.config.max_incremental_fetch_session_cache_slots, self._clock, self._metrics.fetch_sessions
            ),
            zookeeper_offsets=ZooKeeperOffsets(self._cluster),
            authorizer=self._authorizer,
            acls=self._acls,
            metrics=self._metrics,
            check_threads=self._check_threads,
            quotas=self._quotas,
            features=self._features,
            archive=None if self._archive is None else self._archive.manager,
        )
        log = RequestLog(self._metrics, self.config.slow_request_log_ms)
        throttling = Throttling(
            self._quotas, self._metrics, lambda client: context.allows(client, FETCH_AS_FOLLOWER, asked=False)
        )
        return Router(make_routes(context), log, throttling)

    def _serve_http(self) -> None:
        if self._http is None:
            return
        archive = self._archive
        health = Health(
            self.config.broker_id,
            self._logs,
            self._is_store_connected,
            standalone=self.config.standalone,
            archive=None if archive is None else self._archive_problem,
        )
        sources = MetricSources(
            metrics=self._metrics,
            topics=self._topics,
            groups=self._coordinators.groups,
            transactions=self._coordinators.transactions,
            logs=self._logs,
            memory=self._listeners.memory,
            broker_id=self.config.broker_id,
            health=health,
            authorizer=self._authorizer,
            quotas=self._quotas,
            throttled_connections=lambda: self._listeners.throttled_count,
            share=self._share,
            archive=archive,
            archive_failures=lambda: 0 if self._upkeep is None else len(self._upkeep.failures),
        )
        self._tasks.begin("serving metrics.listener", self._http.serve(sources, health))

    async def _tick_forever(self) -> None:
        seconds = self.config.log_flush_scheduler_interval_ms / 1000
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(seconds)
            works: list[Callable[[], object]] = [
                functools.partial(self._logs.tick, lambda job: loop.run_in_executor(None, job)),
                self._listeners.close_idle,
                functools.partial(self._quotas.expire, loop.time()),
                self._listeners.renew_certificates,
                self._peers.renew_certificates,
            ]
            if self._archive is not None:
                works.append(self._archive.manager.tick)
            for work in works:
                try:
                    work()
                except Exception:
                    logger.exception("periodic work failed: %s", name_of(work))

    # --- connections to other brokers

    def _coordinator_peer(self, broker_id: int) -> PeerConnection:
        """A connection to another broker, for the coordinators. Raises BrokerError."""
        broker = self._topics.metadata.brokers.get(broker_id)
        peer = None if broker is None else self._peer(broker, "coordinator", timeout_s=PEER_TIMEOUT_S)
        if peer is None:
            raise BrokerError(ErrorCode.broker_not_available, f"no address of broker {broker_id} is known")
        return peer

    def _peer(self, broker: BrokerInfo, purpose: str, *, timeout_s: float = 30.0) -> PeerConnection | None:
        """A connection to another broker; None if it does not have the listener that brokers use among themselves."""
        endpoint = broker.endpoint(self._peers.listener)
        if endpoint is None:
            return None
        client_id = f"broker-{self.config.broker_id}-{purpose}"
        return PeerConnection(
            endpoint.host, endpoint.port, client_id=client_id, security=self._peers, timeout_s=timeout_s
        )

    def _is_store_connected(self) -> bool:
        return self._store is not None and self._store.connected
