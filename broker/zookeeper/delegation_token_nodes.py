"""Delegation tokens in Kafka's layout (kafka.zk.DelegationTokenInfoZNode, kafka.server.DelegationTokenManager).

`/delegation_token/tokens/<id>` has a token without its HMAC. Whoever changes one writes a sequence node with its id to
`/delegation_token/token_changes`, in the same transaction, and every broker reads that token again. Blocking: call it
from worker threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from typing import Any

from broker.security.delegation_token_state import DelegationToken
from broker.zookeeper import znodes
from broker.zookeeper.change_notifications import NodeChanges
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import BadVersion, Create, Delete, NoNode, Operation, SetData, ZooKeeperError
from broker.zookeeper.znodes import MalformedNode

logger = logging.getLogger(__name__)

TOKENS = "/delegation_token/tokens"
CHANGES = "/delegation_token/token_changes"
_VERSION = 3
"""With `tokenRequester` (Kafka 3.3, KIP-373)."""
_MOST_ATTEMPTS = 100
"""Of those that change a token at the same time, one succeeds each time."""

Change = Callable[[DelegationToken | None], DelegationToken | None]
"""From a token to what becomes of it; None is none."""


class DelegationTokenNodes:
    def __init__(self, zk: MetadataStore) -> None:
        self._zk = zk

    def ensure_paths(self) -> None:
        for path in (TOKENS, CHANGES):
            self._zk.ensure_path(path)

    def load(self) -> dict[str, DelegationToken]:
        """All tokens by id."""
        found = self.read(self._zk.children(TOKENS))
        return {token_id: token for token_id, token in found.items() if token is not None}

    def read(self, ids: Collection[str]) -> dict[str, DelegationToken | None]:
        """The tokens of these ids; None for one that is not there. One that cannot be read is logged, and is none."""
        found: dict[str, DelegationToken | None] = {}
        for token_id, node in zip(ids, self._zk.get_many([_path(one) for one in ids]), strict=True):
            try:
                found[token_id] = None if node is None else _decode(token_id, node[0])
            except MalformedNode as error:
                logger.error("nobody can log in by a delegation token: %s", error)
                found[token_id] = None
        return found

    def create(self, token: DelegationToken) -> None:
        self._write(Create(_path(token.token_id), _encode(token)), token.token_id)

    def change(self, token_id: str, change: Change) -> DelegationToken | None:
        """Write `change(token)`, and notify the brokers; returns it. Raises what `change` does."""
        path = _path(token_id)
        for _ in range(_MOST_ATTEMPTS):
            (node,) = self._zk.get_many([path])
            before = None if node is None else _decode(token_id, node[0])
            after = change(before)
            if node is None or after == before:
                return after
            version = node[1].version
            try:
                self._write(
                    Delete(path, version) if after is None else SetData(path, _encode(after), version), token_id
                )
            except (BadVersion, NoNode):
                continue  # another broker was faster
            return after
        raise ZooKeeperError(path, f"was changed by others {_MOST_ATTEMPTS} times meanwhile; try again")

    def watch(self, callback: Callable[[list[str]], None], on_missed: Callable[[], None]) -> Watch:
        """Call back on the store's event thread with the ids of tokens that were written.

        `on_missed`: when it is not known which were; read all of them.
        """
        return NodeChanges(self._zk, CHANGES, _decode_change).watch(callback, on_missed)

    def _write(self, operation: Operation, token_id: str) -> None:
        self._zk.transaction([operation, Create(f"{CHANGES}/token_change_", token_id.encode(), sequence=True)])


def _path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def _encode(token: DelegationToken) -> bytes:
    node = {
        "version": _VERSION,
        "owner": znodes.sanitized(token.owner),
        "tokenRequester": znodes.sanitized(token.requester),
        "renewers": [znodes.sanitized(renewer) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }
    return json.dumps(node, separators=(",", ":")).encode()


def _decode(token_id: str, data: bytes) -> DelegationToken:
    """A token of any version. Raises MalformedNode."""
    try:
        node: dict[str, Any] = json.loads(data)
        if not 0 < node["version"] <= _VERSION:
            raise ValueError(f"version {node['version']} of delegation tokens is not known")
        owner = znodes.desanitized(node["owner"])
        requester = znodes.desanitized(node["tokenRequester"]) if "tokenRequester" in node else owner
        renewers = tuple(map(znodes.desanitized, node["renewers"]))
        times = (int(node[f"{kind}Timestamp"]) for kind in ("issue", "max", "expiry"))
        return DelegationToken(token_id, owner, requester, renewers, *times)
    except znodes.UNREADABLE as error:
        raise MalformedNode(_path(token_id), data, error) from error


def _decode_change(path: str, data: bytes) -> list[str]:
    try:
        return [data.decode()]
    except UnicodeDecodeError as error:
        raise MalformedNode(path, data, error) from error
