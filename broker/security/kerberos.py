"""Kerberos by way of `gssapi`: whose keys and tickets are used, and what its errors mean.

kerberos_login.py logs in with them, kerberos_server.py lets others in. The package is imported when it is first
needed: it is an extra, and loads the libraries of the system.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from broker.control_characters import escaped
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, PykafkaError

_INSTALL: Final = (
    'GSSAPI needs the package gssapi: pip install "pykafka-spark[kerberos]". On Linux it is built against MIT\'s '
    "Kerberos: install libkrb5-dev and gcc (Debian, Ubuntu) or krb5-devel and gcc (RHEL) before"
)
_HARMLESS: Final = frozenset(
    "storeKey doNotPrompt renewTGT refreshKrb5Config debug clearPass serviceName isInitiator useKeyTab keyTab "
    "useTicketCache ticketCache principal".lower().split()
)
"""Options of Java's login module that are understood, or that do not change who logs in."""

_OUTLIVED: Final[Counter[str]] = Counter()
"""How often the tickets of a keytab, which are in the memory of this process, ended before there were new ones."""

# Codes of MIT's library, as 32 bits without a sign.
_UNKNOWN_CLIENT: Final = 0x96C73A06
_UNKNOWN_SERVICE: Final = 0x96C73A07
_NEVER_VALID: Final = 0x96C73A0B
_REVOKED: Final = 0x96C73A12
_WRONG_KEY: Final = 0x96C73A18
_BAD_INTEGRITY: Final = 0x96C73A1F
_EXPIRED: Final = 0x96C73A20
_SKEW: Final = 0x96C73A25
_UNKNOWN_REALM: Final = 0x96C73A9A
_NO_KDC: Final = 0x96C73A9C
_NO_KEY: Final = 0x96C73AB5
_NO_CACHE: Final = 0x96C73AC3
"""What is left of a login by a keytab that has no key of the principal."""
_CANNOT_RESOLVE: Final = 0x96C73ADC


def gssapi() -> Any:
    """The package. Raises ConfigError where it is not there."""
    try:
        import gssapi as package
    except (ImportError, OSError) as error:  # OSError: libgssapi_krb5 is not there
        raise ConfigError(f"{_INSTALL} ({error})") from None
    return package


def default_realm() -> str:
    """That of krb5.conf. Raises ConfigError where there is none."""
    package = gssapi()
    try:
        name = package.Name("nobody", package.NameType.kerberos_principal).canonicalize(package.MechType.kerberos)
    except package.exceptions.GSSError as error:
        raise ConfigError(f"Kerberos: krb5.conf names no default_realm: {library_text(error)}") from None
    return str(name).rpartition("@")[2]


@dataclasses.dataclass(frozen=True)
class KerberosIdentity:
    """Who logs in, by which keys: a keytab, or tickets that others have got."""

    principal: str = ""
    """Empty: that of the tickets."""
    keytab: str = ""
    """File of the principal's keys; it gets tickets and renews them."""
    cache: str | None = None
    """Ticket cache; "" for the default one (KRB5CCNAME, else krb5.conf's), None for no use of one."""

    def credentials(self) -> Any:
        """With a ticket that is valid now. May ask the KDC. Raises PykafkaError."""
        package = gssapi()
        if self.cache is None:
            return self._of_keytab(package)
        try:
            return self._acquired(package, {"ccache": self.cache} if self.cache else None)
        except package.exceptions.GSSError as error:
            if self.keytab:
                return self._of_keytab(package)
            raise self._no_ticket(package, error) from None

    def _of_keytab(self, package: Any) -> Any:
        if not os.access(self.keytab, os.R_OK):
            raise ConfigError(f"the keytab {self.keytab} of {self.principal} cannot be read on this machine")
        # The library keeps the tickets in the memory of this process, and gets new ones at half of their life.
        key = f"{self.principal}\0{self.keytab}\0{os.environ.get('KRB5_CONFIG')}".encode()
        name = hashlib.sha256(key).hexdigest()[:16]
        store = {"client_keytab": f"FILE:{self.keytab}"}
        try:
            try:
                return self._acquired(package, store | {"ccache": f"MEMORY:pykafka-{name}-{_OUTLIVED[name]}"})
            except package.exceptions.ExpiredCredentialsError:
                # The KDC was away: the library waits half a minute before it asks again for tickets that it had.
                _OUTLIVED[name] += 1
                return self._acquired(package, store | {"ccache": f"MEMORY:pykafka-{name}-{_OUTLIVED[name]}"})
        except package.exceptions.GSSError as error:
            raise translated(error, self, "the KDC") from None

    def _acquired(self, package: Any, store: Mapping[str, str] | None) -> Any:
        name = package.Name(self.principal, package.NameType.kerberos_principal) if self.principal else None
        found = package.Credentials(name=name, usage="initiate", mechs=[package.MechType.kerberos], store=store)
        _ = found.lifetime  # raises for what has expired
        return found

    def _no_ticket(self, package: Any, error: Any) -> PykafkaError:
        where = f"the ticket cache {self.cache or os.environ.get('KRB5CCNAME') or 'of this user'}"
        whose = f" of {self.principal}" if self.principal else ""
        instead = "or log in with a keytab, whose tickets are renewed"
        if isinstance(error, package.exceptions.ExpiredCredentialsError):
            return AuthenticationFailed(
                f"the Kerberos ticket{whose} in {where} has expired: run kinit again, {instead}"
            )
        return AuthenticationFailed(
            f"there is no Kerberos ticket{whose} in {where}: run kinit, {instead} ({library_text(error)})"
        )

    def __str__(self) -> str:
        return self.principal or "the owner of the ticket cache"


def identity_of_module(options: Mapping[str, str], key: str) -> KerberosIdentity:
    """From the options of Java's Krb5LoginModule in the setting `key`. Raises ConfigError.

    Options that change who logs in and are not understood are refused.
    """
    given = {name.lower(): text for name, text in options.items()}
    for name, text in options.items():
        if name.lower() not in _HARMLESS and text.lower() != "false":
            raise ConfigError(f"{key}: Krb5LoginModule's option {name}={text} is not understood here; remove it")
    keytab = cache = None
    if _is_true(given, "usekeytab"):
        keytab = given.get("keytab", "").removeprefix("file://").removeprefix("file:").removeprefix("FILE:")
        if not keytab or not given.get("principal"):
            raise ConfigError(f'{key}: useKeyTab=true needs keyTab="/…/file.keytab" and principal="name@REALM"')
    if _is_true(given, "useticketcache"):
        cache = given.get("ticketcache", "")
    if keytab is None and cache is None:
        raise ConfigError(
            f"{key}: set useKeyTab=true with keyTab and principal, or useTicketCache=true: nobody can type"
        )
    return KerberosIdentity(given.get("principal", ""), keytab or "", cache)


def service_name(options: Mapping[str, str], setting: str | None, key: str) -> str:
    """The first part of the brokers' principal, of the login module's options or the setting. Raises ConfigError."""
    own = options.get("serviceName")
    if own and setting and own != setting:
        raise ConfigError(f"{key} has serviceName={own}, but sasl.kerberos.service.name={setting}: set one of them")
    return own or setting or "kafka"


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def translated(error: Any, identity: KerberosIdentity, service: str) -> PykafkaError:
    """What to raise for an error of the library while `identity` asks for a ticket for `service`."""
    code = error.min_code & 0xFFFFFFFF
    keytab = f"the keytab {identity.keytab}" if identity.keytab else "the ticket cache"
    if code == _NO_KDC:
        return ConnectionFailed(f"Kerberos: no KDC of the realm of {identity} answers: {library_text(error)}")
    texts = {
        _UNKNOWN_CLIENT: f"the KDC does not know the principal {identity}",
        _UNKNOWN_SERVICE: f"the KDC knows no service {service}: is sasl.kerberos.service.name the first part of the "
        "brokers' principal, and is the host the name in their keytab?",
        **dict.fromkeys((_WRONG_KEY, _BAD_INTEGRITY), f"{keytab} has old or wrong keys of {identity}: make it anew"),
        **dict.fromkeys((_NO_KEY, _NO_CACHE), f"{keytab} has no key of {identity}"),
        **dict.fromkeys((_EXPIRED, _NEVER_VALID), f"the ticket in {keytab} has expired: run kinit again"),
        **dict.fromkeys(
            (_UNKNOWN_REALM, _CANNOT_RESOLVE),
            f"krb5.conf names no KDC that can be found for the realm of {identity} or of {service}",
        ),
        _SKEW: "the clocks of this machine and of the KDC differ too much: set them by NTP",
        _REVOKED: f"the principal {identity} is locked at the KDC",
    }
    text = texts.get(code, f"no ticket of {identity} for {service} by {keytab}")
    return AuthenticationFailed(f"Kerberos: {text} ({library_text(error)})")


def library_text(error: Any) -> str:
    """What the library says of an error, without its codes, in one line."""
    texts = [*error.get_all_statuses(error.min_code, False), *error.get_all_statuses(error.maj_code, True)]
    return escaped(next((str(text) for text in texts if text != "Success"), "no reason is given"))[:300]
