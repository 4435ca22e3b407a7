"""SASL GSSAPI (RFC 4752), from the side that logs in: by a ticket for the broker's service."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any, ClassVar, Final

from broker.security.kerberos import KerberosIdentity, gssapi, library_text, translated
from broker.security.login import Exchange, Login, LoginRefused

NO_LAYER: Final = 1
"""Bit of the layer `auth`: what follows the login is neither signed nor encrypted by Kerberos."""
LAYER_BYTES: Final = 4
"""The layers, one byte, and the longest message, three."""


@dataclasses.dataclass(frozen=True)
class KerberosLogin(Login):
    """`user` is the principal, "" for that of the tickets."""

    identity: KerberosIdentity
    service: str
    """First part of the brokers' principal."""

    waits: ClassVar[bool] = True

    @property
    def principal(self) -> str | None:
        return None

    @property
    def described(self) -> str:
        return f"the Kerberos ticket of {self.identity}"

    def begin(self, host: str) -> Exchange:
        package = gssapi()
        credentials = self.identity.credentials()
        name = f"{self.service}@{host}"
        wanted = package.RequirementFlag
        try:
            context = package.SecurityContext(
                name=package.Name(name, package.NameType.hostbased_service),
                creds=credentials,
                mech=package.MechType.kerberos,
                flags=wanted.mutual_authentication | wanted.integrity | wanted.out_of_sequence_detection,
                usage="initiate",
            )
            first = context.step()
        except package.exceptions.GSSError as error:
            raise translated(error, self.identity, f"{self.service}/{host}") from None
        return _exchange(context, first, package.exceptions.GSSError)


def _exchange(context: Any, first: bytes, failure: type[Exception]) -> Exchange:
    try:
        yield from _messages(context, first)
    except failure as error:
        raise LoginRefused(f"the broker's message is not valid: {library_text(error)}") from None


def _messages(context: Any, message: bytes) -> Generator[bytes, bytes, None]:
    while not context.complete:
        answer = yield message
        message = context.step(answer) or b""
    offer = context.unwrap((yield message)).message
    if len(offer) != LAYER_BYTES or not offer[0] & NO_LAYER:
        raise LoginRefused(
            "the broker wants every message signed or encrypted by Kerberos, which Kafka's protocol has not; use TLS"
        )
    yield context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message
