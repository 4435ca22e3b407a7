"""The login that executors get: with `delegationToken=auto` a delegation token of the driver's user, and no password.

The driver, which has the password or the keytab, asks the brokers for a token (KIP-48), as Spark's own source does. Its
id and HMAC go to the tasks, with a partition or a write. A token is used until half of its life is over; then the next
micro-batch gets a new one. While the process that has asked for it runs, it renews it. Planning runs in new processes
for each batch query and for each micro-batch that is written, so they leave the token for one another in the
application's own directory, which only the driver's user can read and which Spark removes. A load expires its token
when it ends; all others end by their age, because nobody tells a source that its query has ended.

Where the brokers give no token, or none that all of them know, tasks get the driver's own login, as without the option,
and the log says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.delegation_tokens import DelegationToken, IssuedToken, settings_with_token, without_login
from broker.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionFailed,
    ErrorCode,
    MechanismNotOffered,
    PykafkaError,
    UnsupportedVersion,
)
from spark_connector.first_contact import application_file, patience_s
from spark_connector.options.option_table import TOKEN_AUTO
from spark_connector.options.read_options import SourceOptions

logger = logging.getLogger("pykafka.spark")

LIFETIME_MS: Final = 86_400_000
"""The most age of a token: the longest task must be done in half of it."""
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_KNOWN_WITHIN_S: Final = 10.0
"""A broker may hear of a new token later than that which gave it."""
_ASK_AGAIN_S: Final = 600.0
"""After the brokers gave no token."""
_NOT_GIVEN: Final = frozenset(
    {
        ErrorCode.delegation_token_auth_disabled,
        ErrorCode.delegation_token_request_not_allowed,
        ErrorCode.delegation_token_authorization_failed,
    }
)


@dataclasses.dataclass(frozen=True)
class _Login:
    """A token that all brokers know, or None; `received_s` by this machine's clock."""

    token: IssuedToken | None
    mechanism: str
    received_s: float

    def is_fresh(self, now_s: float) -> bool:
        life_s = _ASK_AGAIN_S
        if self.token is not None:
            life_s = (self.token.token.expires_ms - self.token.token.issued_ms) / 2000
        return 0 <= now_s - self.received_s < life_s

    def settings(self, client: ClientSettings) -> ClientSettings:
        return client if self.token is None else settings_with_token(client, self.token, self.mechanism)


_logins: dict[ClientSettings, tuple[_Login, threading.Event]] = {}
"""Of this process, each with what ends its renewals."""
_lock = threading.Lock()


def without_secrets(options: SourceOptions) -> SourceOptions:
    """What a pickle for tasks may hold whose partitions say how they log in."""
    return dataclasses.replace(options, client=without_login(options.client), store_options={})


def executors_settings(client: ClientSettings, now_s: Callable[[], float] = time.time) -> ClientSettings:
    """`client` with the login of executors, which may be its own. Raises the client's errors."""
    with _lock:
        login, renewed = _logins.get(client, (None, threading.Event()))
        if login is None or not login.is_fresh(now_s()):
            renewed.set()
            login = _left_by_another(client)
            if login is None or not login.is_fresh(now_s()):
                login = _ask(client, now_s)
                _leave_for_others(client, login)
            _logins[client] = login, _keep_renewed(client, login)
    return login.settings(client)


@contextlib.contextmanager
def lent_to_tasks(options: SourceOptions) -> Iterator[SourceOptions]:
    """The options of tasks that end with this block: their token is renewed until then, and expired."""
    if options.delegation_token != TOKEN_AUTO:
        yield options
        return
    login = _ask(options.client, time.time)
    ended = _keep_renewed(options.client, login)
    try:
        yield dataclasses.replace(options, client=login.settings(options.client), store_options={})
    finally:
        ended.set()
        if login.token is not None:
            with contextlib.closing(Cluster(options.client, create_topics=False)) as cluster:
                _expire(cluster, login.token)


# --- a new token


class _NoToken(PykafkaError):
    """There is none by which one can log in at every broker."""


def _ask(client: ClientSettings, now_s: Callable[[], float]) -> _Login:
    """A new token, or none, and the log says why."""
    try:
        if not client.security_protocol.upper().startswith("SASL_"):
            raise _NoToken(f"kafka.security.protocol={client.security_protocol} has no login by SASL")
        opened = Cluster(client, create_topics=False, first_contact_s=patience_s(client))
        with contextlib.closing(opened) as cluster:
            return _tried(cluster, now_s)
    except (UnsupportedVersion, BrokerError, _NoToken) as error:
        if isinstance(error, BrokerError) and error.code not in _NOT_GIVEN:
            raise
        logger.warning("delegationToken=auto: executors log in as the driver does, for there is no token: %s", error)
        return _Login(None, "", now_s())


def _tried(cluster: Cluster, now_s: Callable[[], float]) -> _Login:
    """A new token by which one can log in at every broker. Raises _NoToken, and what asking for it does."""
    received_s, refused = now_s(), ""
    token = Admin(cluster).create_delegation_token(max_lifetime_ms=LIFETIME_MS)
    for mechanism in _MECHANISMS:
        try:
            for node in cluster.brokers():
                one = dataclasses.replace(cluster.settings, bootstrap_servers=(node.address,))
                _log_in(settings_with_token(one, token, mechanism))
            return _Login(token, mechanism, received_s)
        except AuthenticationFailed as error:
            refused = refused or str(error)
    _expire(cluster, token)
    raise _NoToken(refused)


def _log_in(settings: ClientSettings) -> None:
    """At one broker, which may be down, and may hear of the token a little later."""
    until = time.monotonic() + _KNOWN_WITHIN_S
    while True:
        try:
            with contextlib.closing(Cluster(settings, create_topics=False, first_contact_s=1.0)) as cluster:
                cluster.any_connection()
            return
        except ConnectionFailed as error:
            logger.debug("a token is not tried at %s: %s", settings.bootstrap_servers[0], error)
            return
        except AuthenticationFailed as error:
            if isinstance(error, MechanismNotOffered) or time.monotonic() > until:
                raise
            time.sleep(0.05)


# --- its life


def _keep_renewed(client: ClientSettings, login: _Login) -> threading.Event:
    """Renew the token at half of each of its terms, in the background, until the event is set or it is too old."""
    ended, token = threading.Event(), login.token
    if token is not None and token.token.expires_ms < token.token.max_ms:
        threading.Thread(target=_renew, args=(client, token, ended), name="delegation-token", daemon=True).start()
    return ended


def _renew(client: ClientSettings, issued: IssuedToken, ended: threading.Event) -> None:
    token, expires_ms = issued.token, issued.token.expires_ms
    term_s = (expires_ms - token.issued_ms) / 1000
    while expires_ms < token.max_ms and not ended.wait(term_s / 2):
        try:
            with contextlib.closing(Cluster(client, create_topics=False)) as cluster:
                expires_ms = Admin(cluster).renew_delegation_token(issued.hmac)
        except PykafkaError as error:
            if isinstance(error, BrokerError) and not error.retriable:
                return  # it is expired, or was by others
            logger.warning("cannot renew the delegation token of the executors, trying again: %s", error)
            term_s /= 2


def _expire(cluster: Cluster, token: IssuedToken) -> None:
    try:
        Admin(cluster).expire_delegation_token(token.hmac)
    except PykafkaError as error:
        logger.warning("the delegation token of the executors stays until it expires: %s", error)


# --- what the processes of one application leave for one another


def _file(client: ClientSettings) -> Path | None:
    """Named by who logs in where, without secrets; None where that is not known, or there is no such directory."""
    login = client.login()
    if login is None or not login.user:
        return None
    who = [client.security_protocol, *client.bootstrap_servers, login.mechanism, login.user]
    return application_file(f"pykafka-token-{hashlib.sha256(chr(0).join(who).encode()).hexdigest()[:16]}")


def _left_by_another(client: ClientSettings) -> _Login | None:
    path = _file(client)
    if path is None:
        return None
    try:
        left = json.loads(path.read_bytes())
        token = DelegationToken(**left["token"] | {"renewers": ()})
        return _Login(IssuedToken(token, bytes.fromhex(left["hmac"])), left["mechanism"], left["received_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the first process, or one that is writing


def _leave_for_others(client: ClientSettings, login: _Login) -> None:
    path = _file(client)
    if path is None or login.token is None:
        return
    left = {
        "token": dataclasses.asdict(login.token.token),
        "hmac": login.token.hmac.hex(),
        "mechanism": login.mechanism,
        "received_s": login.received_s,
    }
    mine = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(left, file)
        mine.replace(path)
