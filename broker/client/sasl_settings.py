"""The client's settings of TLS and of logins by SASL, under Kafka's names and librdkafka's."""

from __future__ import annotations

import dataclasses
from functools import partial

from broker.security.mechanisms import AWS_MSK_IAM, MECHANISMS
from broker.security.stores import SECURITY, StoreSettings
from broker.settings import one_of, setting

_security = partial(setting, group=SECURITY)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _mechanism(value: str | None) -> str | None:
    if value is None or value in (*MECHANISMS, AWS_MSK_IAM):
        return None
    return f"must be one of {', '.join(MECHANISMS)} (GSSAPI, Kafka's default, is not built in)"


def _class(value: str | None) -> str | None:
    from broker.security.foreign_logins import class_complaint

    return class_complaint(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslSettings(StoreSettings):
    """The stores of keys and certificates are in the base class. client/logins.py makes a `Login` of the rest."""

    security_protocol: str = _security(
        "PLAINTEXT",
        "Protocol to the brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        one_of((*PROTOCOLS, *(name.lower() for name in PROTOCOLS))),
    )
    ssl_ca_location: str | None = _security(
        None, "PEM file or directory of certificates to trust. librdkafka's name for ssl.truststore.location."
    )
    ssl_certificate_location: str | None = _security(None, "PEM file of the client's certificate chain.")
    ssl_key_location: str | None = _security(None, "PEM file of the private key for ssl.certificate.location.")
    ssl_endpoint_identification_algorithm: str = _security(
        "https",
        "https: the broker's certificate must name its host. none, or an empty value: do not check.",
        one_of(("https", "HTTPS", "none", "")),
    )
    sasl_mechanism: str | None = _security(
        None,
        f"How to log in: {', '.join(MECHANISMS)}, or {AWS_MSK_IAM}: OAUTHBEARER with the token provider aws-msk.",
        _mechanism,
    )
    sasl_username: str | None = _security(None, "User name for SASL.")
    sasl_password: str | None = _security(None, "Password for SASL.", type="password")
    sasl_jaas_config: str | None = _security(
        None,
        'User name and password as a JAAS configuration: …PlainLoginModule required username="…" password="…"; or '
        '…OAuthBearerLoginModule required clientId="…" clientSecret="…" scope="…";',
        type="password",
    )
    sasl_login_callback_handler_class: str | None = _security(
        None, "A class for Java that gets tokens, of Kafka or of a known jar: its token provider is used.", _class
    )
    sasl_client_callback_handler_class: str | None = _security(None, "As sasl.login.callback.handler.class.", _class)
    sasl_oauthbearer_jwt_retriever_class: str | None = _security(
        None, "Kafka's class that gets tokens: of the endpoint, or of a file (KIP-1139).", _class
    )
    sasl_oauthbearer_jwt_validator_class: str | None = _security(
        None, "Kafka's class that looks at tokens. It may be named; it changes nothing.", _class
    )
    sasl_oauthbearer_token_provider: str | None = _security(
        None,
        "What gets the tokens of OAUTHBEARER in each process: oidc, file, aws-msk, google, azure, unsecured, a name of "
        "the entry points pykafka.token_providers, or module:function. By default what the token endpoint's URL says.",
    )
    aws_region: str | None = _security(None, "aws-msk: the cluster's region. Without: from the broker's name.")
    aws_profile: str | None = _security(None, "aws-msk: the profile in the files of AWS.")
    aws_role_arn: str | None = _security(None, "aws-msk: the role to assume.")
    aws_role_session_name: str | None = _security(None, "aws-msk: the name of the role's session.")
    aws_role_external_id: str | None = _security(None, "aws-msk: the external id that the role asks for.")
    aws_sts_region: str | None = _security(None, "aws-msk: the region in which the role is assumed.")
    azure_scope: str | None = _security(
        None, "azure: the scope of the tokens. Without: https://HOST/.default of the first broker's host."
    )
    azure_client_id: str | None = _security(None, "azure: the client id of a managed or workload identity.")
    sasl_oauthbearer_token_endpoint_url: str | None = _security(
        None,
        "OAUTHBEARER: https://… where the identity provider gives tokens for client credentials, or file:///… of a "
        "token. http is accepted for this machine only.",
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = _security(
        None, "Id at the token endpoint, as clientId in sasl.jaas.config."
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = _security(
        None, "Secret at the token endpoint, as clientSecret in sasl.jaas.config.", type="password"
    )
    sasl_oauthbearer_scope: str | None = _security(None, "Scope to ask the token endpoint for.")
    sasl_oauthbearer_header_urlencode: bool = _security(
        False, "URL-encode id and secret in the request to the token endpoint (RFC 6749)."
    )
    sasl_oauthbearer_method: str = _security(
        "default",
        "librdkafka's name for the way to tokens. It may be oidc; it changes nothing.",
        one_of(("default", "oidc")),
    )
    sasl_oauthbearer_client_id: str | None = _security(
        None, "librdkafka's name for sasl.oauthbearer.client.credentials.client.id."
    )
    sasl_oauthbearer_client_secret: str | None = _security(
        None, "librdkafka's name for sasl.oauthbearer.client.credentials.client.secret.", type="password"
    )
    sasl_oauthbearer_extensions: tuple[str, ...] = _security(
        (), "name=value,…: what to tell the broker beside the token (KIP-342)."
    )

    @property
    def encrypted(self) -> bool:
        return self.security_protocol.upper().endswith("SSL")

    @property
    def check_hostname(self) -> bool:
        return self.ssl_endpoint_identification_algorithm.lower() == "https"
