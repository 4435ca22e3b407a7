"""The ways in which people log in to a Kafka: LOGINS, and a broker that takes them all, ours or Apache Kafka's.

tests/spark_connector/test_logins.py does with each of them what is in login_uses.py. A way that is added here is in
those tests and, after `make reference`, in docs/compatibility.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import AuthenticationFailed
from broker.security.delegation_token_state import IssuedToken
from broker.security.scram import ScramMechanism
from tests.conftest import SESSION_SETTINGS
from tests.support.apache_kafka import ApacheKafka, kafka_home
from tests.support.aws_profiles import ACCESS_KEY, LOADER, REGION, STRANGER, aws_profiles
from tests.support.broker_process import BrokerProcess
from tests.support.identity_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, ISSUER, IdentityProvider
from tests.support.kerberos import SERVICE, Kdc, keytab_module, principal_of
from tests.support.requirements import give_up
from tests.support.secured import PLAIN_PASSWORD, PLAIN_USER, SCRAM_PASSWORD, SIMPLE_USER, Certificates
from tests.support.waiting import eventually

T = TypeVar("T")

_WRONG = "wrong-s3cret"
_MODULES = "org.apache.kafka.common.security"
_OAUTH = f"{_MODULES}.oauthbearer"


@dataclasses.dataclass
class LoginBroker:
    """A broker where everybody who comes in by SASL or with a certificate must be one of `LOGINS`; whoever comes to
    PLAINTEXT is a super user, too."""

    listeners: Mapping[str, str]
    """`host:port` of each."""
    certificates: Certificates
    provider: IdentityProvider
    directory: Path
    """For files that a login reads."""
    kdc: Kdc | None
    """None where Kerberos cannot be had."""
    _made: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return self.listeners["PLAINTEXT"]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What the first call has made."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found


@dataclasses.dataclass(frozen=True)
class Login:
    name: str
    what: str
    """Its options, as Markdown."""
    principal: str
    """Who it is for the broker: nobody else may do anything there."""
    properties: Callable[[LoginBroker, bool], dict[str, str]]
    """Those of a client in Kafka's names; False: with a secret that the broker refuses."""
    apache: str = "4.3.0"
    """The Apache Kafka on which it was run, too, or why it was not."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of the connector, besides; then only the uses by Spark are meant."""
    needs_kdc: bool = False

    def __str__(self) -> str:
        return self.name

    def client(self, broker: LoginBroker, right: bool = True) -> dict[str, str]:
        """Gives the test up where it needs what cannot be had."""
        if self.needs_kdc and broker.kdc is None:
            give_up("Kerberos cannot be had")
        return self.properties(broker, right)


def _by_password(
    listener: str, mechanism: str, module: str, user: str, password: str
) -> Callable[[LoginBroker, bool], dict[str, str]]:
    def properties(broker: LoginBroker, right: bool) -> dict[str, str]:
        given = password if right else _WRONG
        return {
            **_address(broker, listener),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{_MODULES}.{module} required username="{user}" password="{given}";',
        }

    return properties


def _by_client_credentials(broker: LoginBroker, right: bool) -> dict[str, str]:
    secret = CLIENT_SECRET if right else _WRONG
    return {
        **_address(broker, "SASL_SSL"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": broker.provider.token_url,
        "sasl.jaas.config": f'{_OAUTH}.OAuthBearerLoginModule required clientId="{CLIENT_ID}" clientSecret="{secret}";',
    }


def _by_token_file(broker: LoginBroker, right: bool) -> dict[str, str]:
    file = broker.directory / f"token-{right}"
    file.write_text(broker.provider.token("ann", **({} if right else {"aud": "elsewhere"})))
    return {
        **_address(broker, "SASL_PLAINTEXT"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def _by_keytab(broker: LoginBroker, right: bool) -> dict[str, str]:
    keytab = broker.once("keytab", lambda: _kdc(broker).principal("etl"))
    return {
        **_address(broker, "KERBEROS"),
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": keytab_module(keytab, principal_of("etl" if right else "nobody")),
    }


def _by_tickets(broker: LoginBroker, right: bool) -> dict[str, str]:
    """As after `kinit`."""

    def kinit() -> Path:
        _kdc(broker).kinit("dba", _kdc(broker).principal("dba"), broker.directory / "tickets")
        return broker.directory / "tickets"

    cache = broker.once("tickets", kinit) if right else broker.directory / "no-tickets"
    return {
        **_address(broker, "KERBEROS"),
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f'Krb5LoginModule required useTicketCache=true ticketCache="{cache}";',
    }


def _kdc(broker: LoginBroker) -> Kdc:
    assert broker.kdc is not None
    return broker.kdc


def _by_delegation_token(broker: LoginBroker, right: bool) -> dict[str, str]:
    def create() -> IssuedToken:
        with Cluster(_by_plain(broker, True)) as cluster:
            return Admin(cluster).create_delegation_token()

    token = broker.once("token", create)
    secret = token.password if right else _WRONG
    user = f'username="{token.token.token_id}" password="{secret}" tokenauth="true"'
    return {
        **_address(broker, "SASL_SSL"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required {user};",
    }


def _by_own_provider(broker: LoginBroker, right: bool) -> dict[str, str]:
    file = broker.directory / f"vault-{right}"
    file.write_text(broker.provider.token("ben", **({} if right else {"aud": "elsewhere"})))
    return {
        **_address(broker, "SASL_SSL"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": "tests.support.company_tokens:read",
        "sasl.jaas.config": f'{_OAUTH}.OAuthBearerLoginModule required vault="{file}";',
    }


def _by_iam(broker: LoginBroker, right: bool) -> dict[str, str]:
    return {
        **_address(broker, "IAM"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": "aws-msk",
        "aws.region": REGION,
        "aws.profile": LOADER if right else STRANGER,
    }


def _by_certificate(broker: LoginBroker, right: bool) -> dict[str, str]:
    certificates = broker.certificates
    return {
        **_address(broker, "MTLS"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.client if right else certificates.stranger),
    }


def _address(broker: LoginBroker, listener: str) -> dict[str, str]:
    protocol = _LISTENERS[listener]
    found = {"bootstrap.servers": broker.listeners[listener], "security.protocol": protocol}
    if protocol.endswith("SSL"):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.certificates.ca)}
    return found


_by_plain = _by_password("SASL_PLAINTEXT", "PLAIN", "plain.PlainLoginModule", PLAIN_USER, PLAIN_PASSWORD)
_SCRAM = "scram.ScramLoginModule", SIMPLE_USER, SCRAM_PASSWORD
LOGINS = (
    Login(
        "PLAIN",
        "`sasl.mechanism=PLAIN`, without TLS",
        PLAIN_USER,
        _by_plain,
    ),
    Login(
        "SCRAM-SHA-256",
        "`sasl.mechanism=SCRAM-SHA-256`, without TLS",
        SIMPLE_USER,
        _by_password("SASL_PLAINTEXT", "SCRAM-SHA-256", *_SCRAM),
    ),
    Login(
        "SCRAM-SHA-512",
        "`sasl.mechanism=SCRAM-SHA-512` over TLS",
        SIMPLE_USER,
        _by_password("SASL_SSL", "SCRAM-SHA-512", *_SCRAM),
    ),
    Login(
        "client-credentials",
        "`sasl.mechanism=OAUTHBEARER` over TLS, tokens of an identity provider for `clientId` and `clientSecret`",
        CLIENT_ID,
        _by_client_credentials,
    ),
    Login(
        "token-file",
        "`sasl.mechanism=OAUTHBEARER`, `sasl.oauthbearer.token.endpoint.url=file:///…`",
        "ann",
        _by_token_file,
    ),
    Login("certificate", "`security.protocol=SSL`, `ssl.keystore.location`", "carol", _by_certificate),
    Login(
        "own-provider",
        "`sasl.mechanism=OAUTHBEARER`, `sasl.oauthbearer.token.provider=module:function`, over TLS",
        "ben",
        _by_own_provider,
    ),
    Login(
        "aws-msk",
        "`sasl.mechanism=OAUTHBEARER`, `sasl.oauthbearer.token.provider=aws-msk`, over TLS; the brokers look at a "
        "token as MSK does, but for its signature",
        ACCESS_KEY,
        _by_iam,
    ),
    Login(
        "keytab",
        "`sasl.mechanism=GSSAPI`, `Krb5LoginModule` with a keytab",
        "etl",
        _by_keytab,
        needs_kdc=True,
    ),
    Login(
        "tickets",
        "`sasl.mechanism=GSSAPI`, `Krb5LoginModule` with the ticket cache of `kinit`",
        "dba",
        _by_tickets,
        needs_kdc=True,
    ),
    Login(
        "delegation-token",
        'SCRAM-SHA-512 with `tokenauth="true"`, over TLS',
        PLAIN_USER,
        _by_delegation_token,
    ),
    Login(
        "delegation-auto",
        "PLAIN, and `delegationToken=auto` of the connector",
        PLAIN_USER,
        _by_plain,
        options={"delegationToken": "auto"},
    ),
)

_LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "MTLS": "SSL",
    "IAM": "SASL_SSL",
    "KERBEROS": "SASL_PLAINTEXT",
}


def _settings(certificates: Certificates, provider: IdentityProvider, kdc: Kdc | None) -> dict[str, str]:
    """Those that our broker and Apache Kafka have in common."""
    listeners = {name: protocol for name, protocol in _LISTENERS.items() if name != "KERBEROS" or kdc is not None}
    found = {
        "listeners": ",".join(f"{name}://{'localhost' if name == 'KERBEROS' else '127.0.0.1'}:0" for name in listeners),
        "listener.security.protocol.map": ",".join(map(":".join, listeners.items())),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ["ANONYMOUS", *sorted({one.principal for one in LOGINS})]),
        "ssl.keystore.location": str(certificates.server),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "ssl.truststore.type": "PEM",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "delegation.token.secret.key": "a secret of the tests",
        "listener.name.iam.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    if kdc is not None:
        own = "listener.name.kerberos"
        module = keytab_module(kdc.keytab(SERVICE), principal_of(SERVICE))
        found |= {
            f"{own}.sasl.enabled.mechanisms": "GSSAPI",
            f"{own}.gssapi.sasl.jaas.config": module,
            f"{own}.sasl.kerberos.service.name": "kafka",
        }
    for name in ("sasl_plaintext", "sasl_ssl"):
        own = f"listener.name.{name}"
        user = f'user_{PLAIN_USER}="{PLAIN_PASSWORD}"'
        found |= {
            f"{own}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {user};",
            f"{own}.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        }
    return found


def _kafkas_own() -> dict[str, str]:
    """What Apache Kafka wants besides: a login module for each mechanism of a listener."""
    modules = {
        "scram-sha-256": "scram.ScramLoginModule required",
        "scram-sha-512": "scram.ScramLoginModule required",
        "oauthbearer": 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
    }
    return {
        f"listener.name.{name}.{mechanism}.sasl.jaas.config": f"{_MODULES}.{module};"
        for name in ("sasl_plaintext", "sasl_ssl", "iam")
        for mechanism, module in modules.items()
    } | {"listener.name.iam.oauthbearer.sasl.server.callback.handler.class": "IamTokens"}


@contextlib.contextmanager
def login_broker(directory: Path, kind: str, kdc: Kdc | None) -> Iterator[LoginBroker]:
    """`kind`: one of `kinds()`. This process is to be in the realm of `kdc`."""
    certificates = Certificates.make(directory)
    with IdentityProvider() as provider, aws_profiles(directory):
        settings = {**SESSION_SETTINGS, **_settings(certificates, provider, kdc)}
        running = _ours(directory, settings) if kind == OURS else _apache(directory, settings, provider, kdc)
        with running as listeners:
            with Cluster(listeners["PLAINTEXT"]) as cluster:
                Admin(cluster).set_password(SIMPLE_USER, SCRAM_PASSWORD, list(ScramMechanism))
            found = LoginBroker(listeners, certificates, provider, directory, kdc)
            possible = [one for one in LOGINS if kdc is not None or not one.needs_kdc]
            eventually(lambda: all(_comes_in(one, found) for one in possible))  # KRaft applies users after the answer
            yield found


def _comes_in(login: Login, broker: LoginBroker) -> bool:
    try:
        with Cluster(login.client(broker)) as cluster:
            return bool(cluster.brokers())
    except AuthenticationFailed:
        return False


OURS, APACHE = "ours", "apache"


def kinds() -> list[str]:
    """The brokers that can be had."""
    return [OURS] if kafka_home() is None else [OURS, APACHE]


class _IamBroker(BrokerProcess):
    module = "tests.support.iam_broker"


@contextlib.contextmanager
def _ours(directory: Path, settings: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    with _IamBroker(directory / "data", settings, standalone=True) as broker:
        yield broker.listeners
    assert "Traceback" not in broker.output, broker.output[-4_000:]


@contextlib.contextmanager
def _apache(
    directory: Path, settings: Mapping[str, str], provider: IdentityProvider, kdc: Kdc | None
) -> Iterator[Mapping[str, str]]:
    home = kafka_home()
    assert home is not None
    options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys_url}"]
    options += [f"-Djava.security.krb5.conf={kdc.config}"] if kdc is not None else []
    classes = directory / "classes"
    source = Path(__file__).with_name("IamTokens.java")
    subprocess.run(["javac", "-proc:none", "-cp", f"{home / 'libs'}/*", "-d", str(classes), str(source)], check=True)
    wanted = {**settings, **_kafkas_own()}
    with ApacheKafka(home, directory / "kafka", wanted, java_options=options, classes=classes) as kafka:
        yield kafka.listeners
