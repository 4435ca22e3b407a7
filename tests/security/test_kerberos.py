"""SASL GSSAPI, both sides against each other with tickets of a real KDC, without a socket between them.

What is asked for and not got is told in words; whatever bytes arrive, they log in or are refused.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, PykafkaError
from broker.security.kerberos import KerberosIdentity, gssapi, identity_of_module, service_name, translated
from broker.security.kerberos_login import KerberosLogin
from broker.security.kerberos_rules import KerberosRules
from broker.security.kerberos_server import KerberosKeys, KerberosServer
from broker.security.login import LoginRefused
from tests.support.kerberos import REALM, SERVICE, Kdc, error_codes, principal_of
from tests.support.waiting import eventually

NO_LAYER = bytes([1, 0, 0, 0])
SIGNED, SEALED = bytes([2, 0, 255, 255]), bytes([4, 0, 255, 255])


@pytest.fixture(scope="module")
def user(kerberos: Kdc) -> KerberosIdentity:
    return KerberosIdentity(principal_of("eve"), str(kerberos.principal("eve")))


@pytest.fixture(scope="module")
def keys(kerberos: Kdc) -> KerberosKeys:
    return KerberosKeys(str(kerberos.keytab(SERVICE)), principal_of(SERVICE), KerberosRules(["DEFAULT"]), "the keytab")


def login(identity: KerberosIdentity, service: str = "kafka") -> KerberosLogin:
    return KerberosLogin("GSSAPI", identity.principal, identity, service)


def logged_in(made: KerberosLogin, server: KerberosServer) -> KerberosServer:
    """After all messages. Raises LoginRefused."""
    exchange = made.begin("localhost")
    message = next(exchange)
    try:
        while True:
            message = exchange.send(server.step(message))
    except StopIteration:
        return server


def test_a_ticket_says_who_it_is_and_for_how_long(user: KerberosIdentity, keys: KerberosKeys) -> None:
    server = logged_in(login(user), KerberosServer(keys))
    assert server.complete
    assert server.user == "eve"
    assert 35_000_000 < server.lifetime_ms <= 36_300_000, "ten hours, and what clocks may differ"


def test_any_key_of_the_keytab_will_do_for_the_principal_star(user: KerberosIdentity, keys: KerberosKeys) -> None:
    every = KerberosKeys(keys.keytab, "*", keys.rules, keys.where)
    assert logged_in(login(user), KerberosServer(every)).user == "eve"


def test_a_ticket_that_was_seen_is_refused(user: KerberosIdentity, keys: KerberosKeys) -> None:
    seen = next(login(user).begin("localhost"))
    assert KerberosServer(keys).step(seen)
    with pytest.raises(LoginRefused, match="replay"):
        KerberosServer(keys).step(seen)


def test_a_ticket_for_another_service_is_refused(kerberos: Kdc, user: KerberosIdentity, keys: KerberosKeys) -> None:
    kerberos.principal("ldap/localhost")
    with pytest.raises(LoginRefused, match="the ticket is not valid"):
        logged_in(login(user, "ldap"), KerberosServer(keys))


class TestLayers:
    @pytest.mark.parametrize("choice", [SIGNED, SEALED, bytes([3, 0, 0, 0]), bytes(4), b"\1", b""])
    def test_a_client_that_chooses_one_is_refused(
        self, user: KerberosIdentity, keys: KerberosKeys, choice: bytes
    ) -> None:
        server = KerberosServer(keys)
        context = begun(user, server)
        with pytest.raises(LoginRefused, match="only auth is offered"):
            server.step(context.wrap(choice, False).message)
        assert not server.complete

    def test_whom_a_client_asks_to_be_does_not_count(self, user: KerberosIdentity, keys: KerberosKeys) -> None:
        server = KerberosServer(keys)
        context = begun(user, server)
        assert server.step(context.wrap(NO_LAYER + b"root", False).message) == b""
        assert server.user == "eve"

    @pytest.mark.parametrize("offer", [SIGNED, SEALED, bytes(4), NO_LAYER + b"x", b""])
    def test_a_broker_that_wants_one_is_refused(
        self, user: KerberosIdentity, keys: KerberosKeys, offer: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(KerberosServer, "_offer", lambda self: self._context.wrap(offer, False).message)
        with pytest.raises(LoginRefused, match="signed or encrypted by Kerberos, which Kafka's protocol has not"):
            logged_in(login(user), KerberosServer(keys))

    def test_a_broker_that_also_offers_one_is_not(
        self, user: KerberosIdentity, keys: KerberosKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def offer(self: Any) -> bytes:
            self._stage = type(self._stage).LAYER
            return bytes(self._context.wrap(bytes([7, 0, 255, 255]), False).message)

        monkeypatch.setattr(KerberosServer, "_offer", offer)
        assert logged_in(login(user), KerberosServer(keys)).user == "eve"


def begun(user: KerberosIdentity, server: KerberosServer) -> Any:
    """A client's context whose next message chooses the layer."""
    package = gssapi()
    name = package.Name("kafka@localhost", package.NameType.hostbased_service)
    flags = package.RequirementFlag.mutual_authentication | package.RequirementFlag.integrity
    context = package.SecurityContext(name=name, creds=user.credentials(), usage="initiate", flags=flags)
    context.step(server.step(context.step()))
    assert context.unwrap(server.step(b"")).message == NO_LAYER
    return context


class TestWhatIsSaid:
    """An error names what was asked for and what to look at."""

    def test_when_the_kdc_knows_no_such_service(self, user: KerberosIdentity) -> None:
        with pytest.raises(
            AuthenticationFailed, match=r"knows no service nobody-has/localhost: is sasl.kerberos.service.name"
        ):
            login(user, "nobody-has").begin("localhost")
        with pytest.raises(AuthenticationFailed, match="knows no service kafka/other: .* the host the name in their"):
            login(user).begin("other")

    def test_when_the_host_is_of_a_realm_without_a_kdc(self, user: KerberosIdentity) -> None:
        with pytest.raises(AuthenticationFailed, match="kafka/broker.elsewhere.example"):
            login(user).begin("broker.elsewhere.example")

    def test_when_the_keytab_cannot_be_read(self) -> None:
        with pytest.raises(ConfigError, match="the keytab /no/keys of eve cannot be read on this machine"):
            KerberosIdentity("eve", "/no/keys").credentials()

    def test_when_the_keytab_has_no_such_key(self, user: KerberosIdentity, keys: KerberosKeys) -> None:
        with pytest.raises(AuthenticationFailed, match=r"keytab .* has no key of bob@PYKAFKA.EXAMPLE"):
            KerberosIdentity(principal_of("bob"), user.keytab).credentials()
        with pytest.raises(ConfigError, match=r"the keytab: the keytab .* has no key of kafka/other@"):
            KerberosKeys(keys.keytab, principal_of("kafka/other"), keys.rules, keys.where).check()

    def test_when_the_keys_were_changed(self, kerberos: Kdc) -> None:
        keytab = kerberos.principal("frank")
        kerberos.change_key("frank")
        with pytest.raises(AuthenticationFailed, match="has old or wrong keys of frank@.*: make it anew"):
            KerberosIdentity(principal_of("frank"), str(keytab)).credentials()

    def test_when_the_principal_is_gone(self, kerberos: Kdc) -> None:
        keytab = kerberos.principal("gone")
        kerberos.kadmin("delprinc", "-force", "gone")
        with pytest.raises(AuthenticationFailed, match="the KDC does not know the principal gone@"):
            KerberosIdentity(principal_of("gone"), str(keytab)).credentials()

    def test_when_the_kdc_is_away_and_another_attempt_may_help(self, kerberos: Kdc) -> None:
        identity = KerberosIdentity(principal_of("henry"), str(kerberos.principal("henry")))
        kerberos.stop()
        try:
            with pytest.raises(ConnectionFailed, match="no KDC of the realm of henry@PYKAFKA.EXAMPLE answers"):
                identity.credentials()
        finally:
            kerberos.start()
        assert identity.credentials().lifetime > 0

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("KRB5KRB_AP_ERR_SKEW", "the clocks of this machine and of the KDC differ too much"),
            ("KRB5KDC_ERR_CLIENT_REVOKED", "the principal eve@R is locked"),
            ("KRB5KDC_ERR_C_PRINCIPAL_UNKNOWN", "the KDC does not know the principal eve@R"),
            ("KRB5KDC_ERR_S_PRINCIPAL_UNKNOWN", "the KDC knows no service kafka/h"),
            ("KRB5KDC_ERR_PREAUTH_FAILED", "the keytab /k has old or wrong keys of eve@R"),
            ("KRB5KRB_AP_ERR_BAD_INTEGRITY", "the keytab /k has old or wrong keys of eve@R"),
            ("KRB5_KT_NOTFOUND", "the keytab /k has no key of eve@R"),
            ("KRB5_FCC_NOFILE", "the keytab /k has no key of eve@R"),
            ("KRB5KRB_AP_ERR_TKT_EXPIRED", "has expired: run kinit again"),
            ("KRB5KDC_ERR_NEVER_VALID", "has expired: run kinit again"),
            ("KRB5_REALM_UNKNOWN", "krb5.conf names no KDC that can be found for the realm of eve@R or of kafka/h"),
            ("KRB5_REALM_CANT_RESOLVE", "krb5.conf names no KDC that can be found"),
            ("KRB5_KDC_UNREACH", "no KDC of the realm of eve@R answers"),
            ("KRB5_CONFIG_BADFORMAT", "no ticket of eve@R for kafka/h by the keytab /k"),
        ],
    )
    def test_of_each_error_of_the_library(self, kerberos: Kdc, name: str, said: str) -> None:
        """Those that no KDC can be made to give here, too; their numbers are those of the library's header."""
        error = SimpleNamespace(
            min_code=error_codes()[name] & 0xFFFFFFFF,
            maj_code=0,
            get_all_statuses=lambda code, is_major: ["as it says"],
        )
        found = translated(error, KerberosIdentity("eve@R", "/k"), "kafka/h")
        assert said in str(found)
        assert str(found).endswith("as it says)") or isinstance(found, ConnectionFailed)

    def test_when_the_package_is_not_there(self, user: KerberosIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gssapi", None)
        with pytest.raises(ConfigError, match=r'pip install "pykafka-spark\[kerberos\]".* libkrb5-dev .* krb5-devel'):
            login(user).begin("localhost")


class TestExpiry:
    def test_a_keytab_gets_new_tickets(self, kerberos: Kdc, keys: KerberosKeys) -> None:
        keytab = kerberos.principal("brief", "-maxlife", "2 seconds")
        identity = KerberosIdentity(principal_of("brief"), str(keytab))
        held = identity.credentials()
        eventually(lambda: has_expired(held))
        assert logged_in(login(identity), KerberosServer(keys)).user == "brief"

    def test_a_keytab_gets_them_also_after_the_kdc_was_away(self, kerberos: Kdc, keys: KerberosKeys) -> None:
        keytab = kerberos.principal("patient", "-maxlife", "2 seconds")
        identity = KerberosIdentity(principal_of("patient"), str(keytab))
        held = identity.credentials()
        kerberos.stop()
        try:
            eventually(lambda: refused(identity) and has_expired(held))
            with pytest.raises(ConnectionFailed, match="no KDC"):
                identity.credentials()
        finally:
            kerberos.start()
        assert logged_in(login(identity), KerberosServer(keys)).user == "patient"

    def test_a_cache_says_so_and_goes_on_after_kinit(
        self, kerberos: Kdc, user: KerberosIdentity, keys: KerberosKeys, tmp_path: Path
    ) -> None:
        cache = tmp_path / "tickets"
        identity = KerberosIdentity(cache=str(cache))
        with pytest.raises(
            AuthenticationFailed, match=f"no Kerberos ticket in the ticket cache {cache}: run kinit, or"
        ):
            login(identity).begin("localhost")
        kerberos.kinit("eve", Path(user.keytab), cache, "-l", "1s")
        assert logged_in(login(identity), KerberosServer(keys)).user == "eve"
        eventually(lambda: refused(identity))
        with pytest.raises(
            AuthenticationFailed, match=f"ticket in the ticket cache {cache} has expired: run kinit again"
        ):
            login(identity).begin("localhost")
        kerberos.kinit("eve", Path(user.keytab), cache)
        assert logged_in(login(identity), KerberosServer(keys)).user == "eve"

    def test_a_keytab_stands_in_for_a_cache_without_a_ticket(
        self, kerberos: Kdc, user: KerberosIdentity, keys: KerberosKeys, tmp_path: Path
    ) -> None:
        """Java's useTicketCache=true useKeyTab=true."""
        both = KerberosIdentity(user.principal, user.keytab, str(tmp_path / "none"))
        assert logged_in(login(both), KerberosServer(keys)).user == "eve"


def has_expired(credentials: Any) -> bool:
    try:
        return int(credentials.lifetime) <= 0
    except gssapi().exceptions.ExpiredCredentialsError:
        return True


def refused(identity: KerberosIdentity) -> bool:
    try:
        identity.credentials()
    except PykafkaError:
        return True
    return False


class TestLoginModule:
    @pytest.mark.parametrize(
        ("options", "identity"),
        [
            (
                {"useKeyTab": "true", "keyTab": "/k", "principal": "a@R", "storeKey": "true", "debug": "true"},
                KerberosIdentity("a@R", "/k"),
            ),
            ({"useKeyTab": "TRUE", "keyTab": "file:/k", "principal": "a@R"}, KerberosIdentity("a@R", "/k")),
            ({"useTicketCache": "true", "renewTGT": "true", "doNotPrompt": "true"}, KerberosIdentity(cache="")),
            ({"useTicketCache": "true", "ticketCache": "/t"}, KerberosIdentity(cache="/t")),
            (
                {"useTicketCache": "true", "useKeyTab": "true", "keyTab": "/k", "principal": "a@R"},
                KerberosIdentity("a@R", "/k", ""),
            ),
            ({"useTicketCache": "true", "useFirstPass": "false"}, KerberosIdentity(cache="")),
        ],
    )
    def test_its_options_are_understood(self, options: dict[str, str], identity: KerberosIdentity) -> None:
        assert identity_of_module(options, "key") == identity

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({}, "set useKeyTab=true with keyTab and principal, or useTicketCache=true"),
            ({"useKeyTab": "false", "keyTab": "/k", "principal": "a"}, "set useKeyTab=true"),
            ({"useKeyTab": "true", "principal": "a"}, "needs keyTab="),
            ({"useKeyTab": "true", "keyTab": "/k"}, "and principal="),
            ({"useTicketCache": "true", "useFirstPass": "true"}, "option useFirstPass=true is not understood"),
            ({"useTicketCache": "true", "credsType": "both"}, "option credsType=both is not understood"),
        ],
    )
    def test_what_would_change_who_logs_in_is_refused(self, options: dict[str, str], complaint: str) -> None:
        with pytest.raises(ConfigError, match=f"sasl.jaas.config: .*{complaint}"):
            identity_of_module(options, "sasl.jaas.config")

    def test_two_names_of_the_service_are_refused(self) -> None:
        assert service_name({}, None, "key") == "kafka"
        assert service_name({"serviceName": "a"}, "a", "key") == "a"
        with pytest.raises(ConfigError, match="key has serviceName=a, but sasl.kerberos.service.name=b"):
            service_name({"serviceName": "a"}, "b", "key")


@pytest.fixture(scope="module")
def right(user: KerberosIdentity, keys: KerberosKeys) -> list[bytes]:
    """The messages of a login: the client's and the broker's in turn."""
    said: list[bytes] = []
    server, exchange = KerberosServer(keys), login(user).begin("localhost")
    said.append(next(exchange))
    for _ in range(2):
        said.append(server.step(said[-1]))
        said.append(exchange.send(said[-1]))
    return said


hostile = st.lists(
    st.binary(max_size=60)
    | st.tuples(st.integers(0, 4), st.integers(0, 700), st.integers(0, 700), st.binary(max_size=20)),
    max_size=4,
)


def spoiled(right: list[bytes], part: bytes | tuple[int, int, int, bytes]) -> bytes:
    """Any bytes, or a message of a right login with a part replaced."""
    if isinstance(part, bytes):
        return part
    message = right[part[0]]
    first, last = sorted(at % (len(message) + 1) for at in part[1:3])
    return message[:first] + part[3] + message[last:]


@given(messages=hostile)
def test_whatever_a_client_sends_is_no_login(
    right: list[bytes], keys: KerberosKeys, messages: list[bytes | tuple[int, int, int, bytes]]
) -> None:
    server = KerberosServer(keys)
    for message in messages:
        try:
            server.step(spoiled(right, message))
        except LoginRefused:
            break
    assert not server.complete


@given(answers=hostile)
def test_whatever_a_broker_answers_is_no_login(
    right: list[bytes], user: KerberosIdentity, answers: list[bytes | tuple[int, int, int, bytes]]
) -> None:
    exchange = login(user).begin("localhost")
    next(exchange)
    messages = (exchange.send(spoiled(right, answer)) for answer in [*answers, b"", b"", b""])
    with pytest.raises(LoginRefused):
        list(messages)


def test_a_keytab_is_read_for_each_login(user: KerberosIdentity, keys: KerberosKeys, tmp_path: Path) -> None:
    """New keys need no restart of a broker."""
    path = tmp_path / "keytab"
    moving = KerberosKeys(str(path), keys.principal, keys.rules, keys.where)
    with pytest.raises(LoginRefused, match="the ticket is not valid"):
        logged_in(login(user), KerberosServer(moving))
    shutil.copy(keys.keytab, path)
    assert logged_in(login(user), KerberosServer(moving)).user == "eve"


def test_the_realm_is_that_of_the_configuration(keys: KerberosKeys) -> None:
    assert keys.realm == REALM
