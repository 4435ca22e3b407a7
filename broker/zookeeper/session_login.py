"""The login of a ZooKeeper session by SASL GSSAPI. Called by kazoo's network thread, each time it has connected.

kazoo's own login wants two more packages, takes no keytab, and never connects again after one that failed. So its
method is replaced: a login that fails is a lost connection, and kazoo tries again.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import SASL

from broker.errors import PykafkaError
from broker.security.login import Exchange, Login, LoginRefused

log = logging.getLogger(__name__)


class SessionLogin:
    """Who logs in to ZooKeeper. `done` is set once it has succeeded; `failure` says why the last one has not."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self.done = threading.Event()
        self.failure = ""

    def install(self, client: KazooClient) -> None:
        """Before the client starts."""
        connection = client._connection
        connection.sasl_options = {}  # what has kazoo log in
        connection._authenticate_with_sasl = functools.partial(self._authenticate, connection)

    def _authenticate(self, connection: Any, host: str, timeout: float) -> None:
        try:
            self._exchange(connection, self._login.begin(host), timeout)
        except PykafkaError as error:
            failure = f"the login to ZooKeeper at {host} with {self._login.described} failed: {error}"
            if failure != self.failure:
                log.warning("%s; trying again", failure)
            self.failure = failure
            raise ConnectionDropped(failure) from None
        self.failure = ""
        self.done.set()

    def _exchange(self, connection: Any, exchange: Exchange, timeout: float) -> None:
        """`timeout`: seconds for each answer. Raises ConnectionDropped, also when ZooKeeper hangs up to refuse."""
        message, xid = next(exchange), 0
        while True:
            xid += 1
            connection._submit(SASL(message), timeout, xid)
            header, buffer, offset = connection._read_header(timeout)
            if header.err:
                raise LoginRefused(f"{EXCEPTIONS[header.err].__name__}: has its server a login by SASL?")
            try:
                message = exchange.send(SASL.deserialize(buffer, offset)[0] or b"")
            except StopIteration:
                return
