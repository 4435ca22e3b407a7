"""Nodes below `/config`, in Kafka's layout: quotas, and changes of entries that keep what others change meanwhile.

    /config/users/<user>                       quotas, and the user's SCRAM credentials
    /config/users/<user>/clients/<client id>
    /config/clients/<client id>
    /config/ips/<address>

A name is `<default>` or written as Kafka's Sanitizer writes it. Each node is a config: a JSON object of texts. All of
this blocks and raises ConnectionFailed as the methods of the Registry.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from broker.quotas.quota_entity import CLIENT_KEYS, DEFAULT, IP_KEYS, QuotaEntity
from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import BadVersion, NodeExists, NoNode, NotEmpty
from broker.zookeeper.znodes import MalformedNode

logger = logging.getLogger(__name__)

CLIENTS = "clients"
_KINDS = (znodes.USER_CONFIGS, znodes.CLIENT_CONFIGS, znodes.IP_CONFIGS)


def read_config(zk: MetadataStore, path: str) -> tuple[dict[str, str], int | None]:
    """The config and its version, None when there is no node. Raises MalformedNode."""
    try:
        data, stat = zk.get(path)
    except NoNode:
        return {}, None
    return znodes.decode_config(path, data), stat.version


def alter_config(zk: MetadataStore, path: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Set entries, or remove those whose new value is None; returns the whole config."""
    while True:
        config, version = read_config(zk, path)
        merged: dict[str, str | None] = {**config, **changes}
        altered = {key: value for key, value in merged.items() if value is not None}
        data = znodes.encode_config(altered)
        try:
            if version is None:
                zk.create(path, data, parents=True)
            else:
                zk.set(path, data, version)
            return altered
        except (BadVersion, NodeExists, NoNode):
            continue  # another broker was faster


def entity_path(entity: QuotaEntity) -> str:
    """Such as `users/alice/clients/<default>`: the path below `/config`, which change notifications name."""
    user, client_id, ip = entity
    if ip is not None:
        return f"ips/{_node(ip)}"
    if user is None:
        return f"clients/{_node(client_id or DEFAULT)}"
    return f"users/{_node(user)}" + ("" if client_id is None else f"/{CLIENTS}/{_node(client_id)}")


def entity_of(path: str) -> QuotaEntity | None:
    """The entity of such a path; None if it is that of another config."""
    match path.split("/"):
        case ["users", user]:
            return QuotaEntity(user=_name(user))
        case ["users", user, "clients", client_id]:
            return QuotaEntity(user=_name(user), client_id=_name(client_id))
        case ["clients", client_id]:
            return QuotaEntity(client_id=_name(client_id))
        case ["ips", ip]:
            return QuotaEntity(ip=_name(ip))
    return None


def _node(name: str) -> str:
    return znodes.sanitized(name) if name else znodes.DEFAULT_ENTITY


def _name(node: str) -> str:
    return DEFAULT if node == znodes.DEFAULT_ENTITY else znodes.desanitized(node)


class QuotaNodes:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def read_all(self) -> dict[QuotaEntity, dict[str, str]]:
        """The quotas of all entities that have some."""
        kinds = zip(("users", "clients", "ips"), self._zk.children_many(_KINDS), strict=True)
        paths = [f"{kind}/{node}" for kind, nodes in kinds for node in nodes]
        users = [path for path in paths if path.startswith("users/")]
        found = self._zk.get_many([_full(user) for user in users])
        parents = [user for user, node in zip(users, found, strict=True) if node is not None and node[1].children]
        children = self._zk.children_many([f"{_full(user)}/{CLIENTS}" for user in parents])
        pairs = zip(parents, children, strict=True)
        paths += [f"{user}/{CLIENTS}/{client}" for user, clients in pairs for client in clients]
        return self._read_many(paths)

    def _read_many(self, paths: Iterable[str]) -> dict[QuotaEntity, dict[str, str]]:
        """A node that is no config is logged and left out. No error may show it: it can hold credentials."""
        paths = list(paths)
        found: dict[QuotaEntity, dict[str, str]] = {}
        for path, node in zip(paths, self._zk.get_many([_full(path) for path in paths]), strict=True):
            entity = entity_of(path)
            if node is None or entity is None:
                continue
            try:
                quotas = _only_quotas(entity, znodes.decode_config(path, node[0]))
            except MalformedNode:
                logger.error("the quotas in %s in ZooKeeper are ignored: it is not Kafka's JSON", _full(path))
                continue
            if quotas:
                found[entity] = quotas
        return found

    def read(self, entity: QuotaEntity) -> dict[str, str]:
        """The quotas of one entity; none if there is no node."""
        return self._read_many([entity_path(entity)]).get(entity, {})

    def alter(self, entity: QuotaEntity, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set quotas, or remove those whose new value is None; returns those of the entity.

        Other entries of the node stay. An empty node is deleted, as Kafka does.
        """
        path = _full(entity_path(entity))
        if all(value is None for value in changes.values()) and read_config(self._zk, path)[1] is None:
            return {}
        altered = alter_config(self._zk, path, changes)
        if not altered:
            self._delete_if_empty(path)
            if entity.user is not None and entity.client_id is not None:
                clients = path.rpartition("/")[0]
                self._delete_if_empty(clients)
                self._delete_if_empty(clients.rpartition("/")[0])
        return _only_quotas(entity, altered)

    def _delete_if_empty(self, path: str) -> None:
        with contextlib.suppress(BadVersion, NoNode, NotEmpty):
            data, stat = self._zk.get(path)
            if not stat.children and not (data and znodes.decode_config(path, data)):
                self._zk.delete(path, stat.version)


def _full(path: str) -> str:
    return f"/config/{path}"


def _only_quotas(entity: QuotaEntity, config: Mapping[str, str]) -> dict[str, str]:
    keys = CLIENT_KEYS if entity.ip is None else IP_KEYS
    return {key: value for key, value in config.items() if key in keys}
