"""The classes by which others log in to Kafka, and the token provider that does the same for each.

Configurations made for Java name a mechanism, a login module and callback handlers of some jar. `translated` reads
them. An option that would change who logs in is mapped or refused with what to set instead, and never ignored. Packages
do not count, so a class may be shaded (kafkashaded.…, shadedmskiam.…). docs/how-to/move-from-spark-kafka.md shows this
table; a test compares them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from broker.errors import ConfigError
from broker.security.jaas import LoginModule
from broker.security.mechanisms import AWS_MSK_IAM, LOGIN_MODULES, OAUTHBEARER
from broker.security.token_providers import file

LOGIN_HANDLERS: Final = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
"""Kafka's classes that do what is done here; brokers may name them, too."""
_IAM: Final = "IAMLoginModule"
_PROVIDER: Final = "sasl.oauthbearer.token.provider"


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignLogin:
    """Classes of one jar; their options by what becomes of them. A name that ends in * stands for all that begin so."""

    classes: tuple[str, ...]
    """Without packages: handlers, retrievers and login modules."""
    provider: str | None
    """None: what would be used without the class."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Theirs → ours."""
    ignored: tuple[str, ...] = ()
    """They change nothing that matters here: how often is tried, what is logged."""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """→ what to set."""


_KAFKA: Final = ForeignLogin(
    (
        *LOGIN_HANDLERS,
        *("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever"),
        *("DefaultJwtValidator", "ClientJwtValidator"),
    ),
    None,
)
_AMAZON: Final = ForeignLogin(
    (_IAM, "IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler"),
    "aws-msk",
    {
        "awsProfileName": "aws.profile",
        "awsRoleArn": "aws.role.arn",
        "awsRoleSessionName": "aws.role.session.name",
        "awsRoleExternalId": "aws.role.external.id",
        "awsStsRegion": "aws.sts.region",
    },
    ("awsMaxRetries", "awsMaxBackOffTimeMs", "awsDebugCreds", "awsAddDefaultProviders"),
    {
        "awsRoleAccessKeyId": "put the keys into a profile of AWS, and set aws.profile",
        "awsRoleSecretAccessKey": "put the keys into a profile of AWS, and set aws.profile",
        "awsRoleSessionToken": "put the keys into a profile of AWS, and set aws.profile",
        "awsMskRegionProvider": "set aws.region",
        "awsShouldUseFips": "set AWS_USE_FIPS_ENDPOINT=true in the environment",
    },
)
_GOOGLE: Final = ForeignLogin(("GcpLoginCallbackHandler",), "google")
_MICROSOFT: Final = ForeignLogin(
    ("CustomAuthenticateCallbackHandler", "KafkaOAuth2AuthenticateCallbackHandler"),
    "azure",
    {"azure.credential.client-id": "azure.client.id"},
    ("azure.configured", "azure.credential.managed-identity-enabled"),
    {"azure.*": "give azure-identity its credentials in the environment: AZURE_CLIENT_ID, AZURE_TENANT_ID, …"},
)
_IN_ENDPOINT: Final = "use the credentials of a client, oauth.client.id and oauth.client.secret, or a file of tokens"
_USUAL_GRANT: Final = ("oauth.client.credentials.grant.type", "client_credentials")
_STRIMZI: Final = ForeignLogin(
    ("JaasClientOauthLoginCallbackHandler",),
    "oidc",
    {
        "oauth.token.endpoint.uri": file.URL,
        "oauth.client.id": "clientId",
        "oauth.client.secret": "clientSecret",
        "oauth.scope": "scope",
        "oauth.audience": "audience",
        "oauth.access.token.location": file.URL,
        "oauth.sasl.extension.*": "extension_*",
        "oauth.ssl.truststore.*": "ssl.truststore.*",
    },
    (
        *("oauth.access.token.is.jwt", "oauth.tokens.not.jwt", "oauth.max.token.expiry.seconds", "oauth.config.id"),
        *("oauth.connect.timeout.seconds", "oauth.read.timeout.seconds", "oauth.http.retries", "oauth.enable.metrics"),
        *("oauth.http.retry.pause.millis", "oauth.include.accept.header", "oauth.ssl.secure.random.implementation"),
        *("oauth.username.*", "oauth.fallback.username.*", "oauth.force.jsonpath.username.extraction"),
    ),
    {
        "oauth.access.token": "write the token into a file, and name it in oauth.access.token.location",
        "oauth.refresh.token*": _IN_ENDPOINT,
        "oauth.password.grant.*": _IN_ENDPOINT,
        "oauth.client.assertion*": _IN_ENDPOINT,
        _USUAL_GRANT[0]: _IN_ENDPOINT,
        "oauth.ssl.endpoint.identification.algorithm": "give the identity provider a certificate for its host's name",
    },
)
FOREIGN: Final = (_KAFKA, _AMAZON, _GOOGLE, _MICROSOFT, _STRIMZI)
UNKNOWN: Final[Mapping[str, str]] = {
    "JwtBearerJwtRetriever": f"it signs assertions; use client credentials, or {_PROVIDER}=module:function",
    "BrokerJwtValidator": "it is for brokers",
}
"""Classes that are known and do what nothing here does."""
_BY_CLASS: Final = {name: one for one in FOREIGN for name in one.classes}


class Translated(NamedTuple):
    provider: str | None
    options: dict[str, str]


def class_complaint(value: str | None) -> str | None:
    """For a setting that names a class: None if it is one of these."""
    name = (value or "").rpartition(".")[2]
    if value is None or name in _BY_CLASS:
        return None
    if name in UNKNOWN:
        return f"{name} is not built in: {UNKNOWN[name]}"
    return f"this class is not known; set {_PROVIDER} to what gets the tokens instead"


def translated(mechanism: str | None, module: LoginModule | None, classes: Iterable[str | None]) -> Translated:
    """What the classes and the options of the login module come to. `classes` were accepted by class_complaint.

    Raises ConfigError when they contradict each other, and for an option that cannot be had.
    """
    names = {name.rpartition(".")[2] for name in classes if name}
    options = dict(module.options) if module else {}
    if module is not None and module.name in _BY_CLASS:
        names.add(module.name)
    if mechanism == AWS_MSK_IAM:
        names.add(_IAM)
    found = {one for one in map(_BY_CLASS.__getitem__, names) if one.provider}
    if len(found) > 1:
        raise ConfigError(f"{', '.join(sorted(names))} are classes of different services: name those of one")
    for one in found:
        _check_mechanism(mechanism, module, sorted(names))
        return _translated(one, options)
    return Translated("file" if "FileJwtRetriever" in names else None, options)


def _check_mechanism(mechanism: str | None, module: LoginModule | None, names: list[str]) -> None:
    """A token must not be sent where the settings speak of a password."""
    if mechanism not in (None, OAUTHBEARER, AWS_MSK_IAM):
        raise ConfigError(f"sasl.mechanism={mechanism}: {', '.join(names)} is for {OAUTHBEARER}")
    needed = _IAM if mechanism == AWS_MSK_IAM else LOGIN_MODULES[OAUTHBEARER]
    if module is not None and module.name != needed and (mechanism, module.name) != (None, _IAM):
        raise ConfigError(f"sasl.jaas.config: sasl.mechanism={mechanism} needs {needed}, not {module.name}")


def _translated(login: ForeignLogin, given: Mapping[str, str]) -> Translated:
    options: dict[str, str] = {}
    for name, value in given.items():
        if ours := _match(login.options, name):
            options[ours] = (
                Path(value).absolute().as_uri() if name.endswith(".location") and ours == file.URL else value
            )
        elif _match(dict.fromkeys(login.ignored, "ignored"), name) or (name, value) == _USUAL_GRANT:
            continue
        elif why := _match(login.refused, name):
            raise ConfigError(f"sasl.jaas.config: {name} is not supported: {why}")
        else:
            raise ConfigError(
                f"sasl.jaas.config: {name} is no option that is known of {login.classes[-1]}; there are "
                f"{', '.join(login.options) or 'none'}"
            )
    if "awsProfileName" in given and "awsRoleArn" in given:
        raise ConfigError(
            "sasl.jaas.config: awsProfileName and awsRoleArn are alternatives there: set one of them, or "
            f"{_PROVIDER}=aws-msk with aws.profile and aws.role.arn for the role as seen from the profile"
        )
    if "oauth.access.token.location" in given:
        kept = {name: value for name, value in options.items() if name == file.URL or name.startswith("extension_")}
        return Translated("file", kept)
    return Translated(login.provider, options)


def _match(table: Mapping[str, str], name: str) -> str | None:
    """The entry for `name`; where both it and its value end in *, with the rest of the name."""
    if name in table:
        return table[name]
    for pattern, value in table.items():
        if pattern.endswith("*") and name.startswith(pattern[:-1]):
            return value[:-1] + name[len(pattern) - 1 :] if value.endswith("*") else value
    return None
