"""SASL GSSAPI (RFC 4752), from the broker's side: who a client's ticket says it is.

The keys are those of the listener's keytab, read anew for each login, so that new keys need no restart. A ticket is
checked without the KDC. The layer is `auth`, as in Kafka; another is refused.
"""

from __future__ import annotations

import dataclasses
import functools
from enum import Enum
from typing import Any

from broker.errors import ConfigError
from broker.security.kerberos import default_realm, gssapi, library_text
from broker.security.kerberos_login import LAYER_BYTES, NO_LAYER
from broker.security.kerberos_rules import KerberosRules
from broker.security.login import LoginRefused


@dataclasses.dataclass(frozen=True)
class KerberosKeys:
    """What a listener accepts tickets with."""

    keytab: str
    principal: str
    """kafka/HOST@REALM; * for all of the keytab."""
    rules: KerberosRules
    where: str
    """The setting, for errors."""

    def credentials(self) -> Any:
        """Raises GSSError."""
        package = gssapi()
        name = None if self.principal == "*" else package.Name(self.principal, package.NameType.kerberos_principal)
        store = {"keytab": f"FILE:{self.keytab}"}
        return package.Credentials(name=name, usage="accept", mechs=[package.MechType.kerberos], store=store)

    def check(self) -> None:
        """Raise ConfigError when nobody could log in."""
        package = gssapi()
        try:
            self.credentials()
        except package.exceptions.GSSError as error:
            raise ConfigError(
                f"{self.where}: the keytab {self.keytab} has no key of {self.principal}: {library_text(error)}"
            ) from None
        _ = self.realm

    @functools.cached_property
    def realm(self) -> str:
        """The default realm, if the rules ask for it."""
        return default_realm() if self.rules.ask_for_the_default_realm else ""


class _Stage(Enum):
    TICKET = "a ticket"
    ACKNOWLEDGEMENT = "an empty message, since the last one went this way"
    LAYER = "the layer, and as whom"


class KerberosServer:
    """One login as the broker sees it. `user` and `lifetime_ms` are set when it is `complete`."""

    def __init__(self, keys: KerberosKeys) -> None:
        self._package = gssapi()
        self._keys = keys
        self._stage = _Stage.TICKET
        self._context: Any = None
        self.user = ""
        self.lifetime_ms = 0
        """How long the ticket is still valid."""
        self.complete = False

    def step(self, message: bytes) -> bytes:
        """The answer. Raises LoginRefused."""
        try:
            if self._stage is _Stage.TICKET:
                return self._take_ticket(bytes(message))
            if self._stage is _Stage.ACKNOWLEDGEMENT:
                return self._offer()
            self._take_choice(self._context.unwrap(bytes(message)).message)
            return b""
        except self._package.exceptions.GSSError as error:
            raise LoginRefused(f"the ticket is not valid: {library_text(error)}") from None

    def _take_ticket(self, message: bytes) -> bytes:
        if self._context is None:
            self._context = self._package.SecurityContext(creds=self._keys.credentials(), usage="accept")
        answer: bytes = self._context.step(message) or b""
        if not self._context.complete:
            if not answer:
                raise LoginRefused("the message has no ticket")
            return answer
        if not answer:
            return self._offer()
        self._stage = _Stage.ACKNOWLEDGEMENT
        return answer

    def _offer(self) -> bytes:
        self._stage = _Stage.LAYER
        return bytes(self._context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message)

    def _take_choice(self, choice: bytes) -> None:
        if len(choice) < LAYER_BYTES or choice[0] != NO_LAYER:
            raise LoginRefused("the client wants its messages signed or encrypted by Kerberos; only auth is offered")
        # Whom the client asks to be (the rest of the choice) does not count: kafka-python names the service there, and
        # Kafka, too, takes who the ticket says it is.
        principal = str(self._context.initiator_name)
        self.user = self._keys.rules.user_of(principal, self._keys.realm)
        self.lifetime_ms = int(self._context.lifetime) * 1000
        self.complete = True
