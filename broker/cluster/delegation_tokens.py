"""The delegation tokens of the cluster: in ZooKeeper, with a cache in each broker, which logins ask.

All tokens are read at start, and one again when a notification names it. Lives on the event loop. Without
`delegation.token.secret.key` there are none. The controller removes those that have expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from broker.clock import Clock
from broker.cluster.cluster_watch import ClusterWatch
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.security.delegation_token_state import (
    Create,
    DelegationToken,
    Expire,
    IssuedToken,
    Limits,
    Renew,
    changed,
    created,
    credential_of,
    hmac_of,
)
from broker.security.scram import ScramCredential, ScramMechanism, TokenCredential
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.delegation_token_nodes import DelegationTokenNodes
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.znodes import new_uuid, uuid_to_text

logger = logging.getLogger(__name__)

_KIND = "delegation-tokens"


class DelegationTokens:
    def __init__(self, zk: MetadataStore, store: ClusterStore, config: BrokerConfig, clock: Clock) -> None:
        self._nodes = DelegationTokenNodes(zk)
        self._store = store
        self._secret = config.delegation_token_secret_key or ""
        self._limits = Limits(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        self._check_s = config.delegation_token_expiry_check_interval_ms / 1000
        self._clock = clock
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}
        """By HMAC."""
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        """Of tokens that have logged in: each costs 2 ms."""

    @property
    def enabled(self) -> bool:
        return bool(self._secret)

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """By id. Expired ones are there until they are removed."""
        return self._tokens

    # --- what the store knows

    async def load(self) -> None:
        """Create the nodes, and read all tokens. Raises BrokerError when ZooKeeper is away."""
        if self.enabled:
            await self._store(self._nodes.ensure_paths)
            await self.refresh()

    async def refresh(self, token_id: str = "") -> None:
        """Read the token with this id again, or all of them. Raises BrokerError when ZooKeeper is away."""
        if not self.enabled:
            return
        if token_id:
            read = await self._store(self._nodes.read, [token_id])
        else:
            read = dict.fromkeys(self._tokens) | await self._store(self._nodes.load)
        for one, token in read.items():
            self._note(one, token)

    def watch(self, watch: ClusterWatch) -> list[Watch]:
        """Follow what other brokers change, by the tasks of `watch`."""
        if not self.enabled:
            return []
        watch.add_config_listener(_KIND, self.refresh)

        def note(ids: list[str]) -> None:
            watch.note_altered(f"{_KIND}/{one}" for one in ids)

        return [self._nodes.watch(on_loop(note), on_loop(lambda: note([""])))]

    def _note(self, token_id: str, token: DelegationToken | None) -> None:
        if token is not None:
            self._ids[self._hmac(token_id)] = token_id
            self._tokens[token_id] = token
        elif self._tokens.pop(token_id, None) is not None:
            del self._ids[self._hmac(token_id)]
            for mechanism in ScramMechanism:
                self._credentials.pop((token_id, mechanism), None)

    def _issued(self, token: DelegationToken) -> IssuedToken:
        return IssuedToken(token, self._hmac(token.token_id))

    def _hmac(self, token_id: str) -> bytes:
        return hmac_of(token_id, self._secret)

    # --- what clients ask for

    def login(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        """Who logs in by this token; None if there is none, or it has expired."""
        token, now_ms = self._tokens.get(token_id), self._clock.now_ms()
        if token is None or token.is_expired(now_ms):
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            credential = credential_of(self._issued(token), self._secret, mechanism)
            self._credentials[token_id, mechanism] = credential
        return TokenCredential(credential, token.user, max(1, token.expires_ms - now_ms))

    def visible(self, sees: Callable[[DelegationToken], bool]) -> list[IssuedToken]:
        return [self._issued(one) for one in self._tokens.values() if sees(one)]

    async def create(self, owner: str, requester: str, renewers: tuple[str, ...], lifetime_ms: int) -> IssuedToken:
        """Raises BrokerError: `invalid_principal_type`, or `delegation_token_auth_disabled`."""
        event = Create(uuid_to_text(new_uuid()), owner, requester, renewers, lifetime_ms)
        token = created(event, self._clock.now_ms(), self._limits)
        self._check_enabled()
        await self._store(self._nodes.create, token)
        self._note(token.token_id, token)
        logger.info("%s created delegation token %s of %s", requester, token.token_id, owner)
        return self._issued(token)

    async def change(self, hmac: bytes, event: Renew | Expire) -> int:
        """When the token with this HMAC expires now (ms). Raises BrokerError, as `changed` does."""
        self._check_enabled()
        now_ms, token_id = self._clock.now_ms(), self._ids.get(hmac, "")
        changed(self._tokens.get(token_id), event, now_ms, self._limits)  # without a call for what is refused
        after = await self._store(
            self._nodes.change, token_id, lambda token: changed(token, event, now_ms, self._limits)
        )
        self._note(token_id, after)
        return now_ms if after is None else after.expires_ms

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise BrokerError(
                ErrorCode.delegation_token_auth_disabled, "delegation.token.secret.key is not set on the brokers"
            )

    # --- expiry

    async def run(self, is_controller: Callable[[], bool]) -> None:
        """Remove expired tokens for ever, while this broker is the controller."""
        while True:
            await asyncio.sleep(self._check_s)
            if is_controller():
                try:
                    await self.remove_expired()
                except PykafkaError as error:
                    logger.warning("cannot remove expired delegation tokens, trying again later: %s", error)

    async def remove_expired(self) -> None:
        """Raises BrokerError when ZooKeeper is away."""
        now_ms = self._clock.now_ms()
        for token_id in [one.token_id for one in self._tokens.values() if one.is_expired(now_ms)]:
            # It may have been renewed through another broker, as long as it had not expired.
            after = await self._store(
                self._nodes.change, token_id, lambda token: token if token and not token.is_expired(now_ms) else None
            )
            self._note(token_id, after)
            if after is None:
                logger.info("delegation token %s has expired", token_id)
