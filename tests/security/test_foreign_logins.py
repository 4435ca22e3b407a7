"""Configurations that were made for Java's jars: each comes to the token provider that does the same, or is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from broker.security.foreign_logins import FOREIGN, UNKNOWN, ForeignLogin
from broker.security.oauthbearer import TokenLogin
from tests.support.source_tree import ROOT

OAUTH = "kafkashaded.org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
IAM = "shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule required"
AMAZON = {"sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"}
AMAZONS_TOKEN = {"sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"}
GOOGLE = {"sasl.login.callback.handler.class": "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"}
STRIMZI = {"sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"}
KAFKA = {
    "sasl.login.callback.handler.class": "kafkashaded.org.apache.kafka.common.security.oauthbearer.secured."
    "OAuthBearerLoginCallbackHandler"
}
MICROSOFTS_SAMPLE = {"sasl.login.callback.handler.class": "CustomAuthenticateCallbackHandler"}
SPRING = {
    "sasl.login.callback.handler.class": "com.azure.spring.cloud.service.implementation.kafka."
    "KafkaOAuth2AuthenticateCallbackHandler"
}
RETRIEVER = "org.apache.kafka.common.security.oauthbearer"
URL = "sasl.oauthbearer.token.endpoint.url"
ROLE = "arn:aws:iam::123456789012:role/loader"


def login(**properties: str) -> TokenLogin:
    given = {
        "bootstrap.servers": "b-1.a.b.c2.kafka.eu-west-1.amazonaws.com:9098",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        **properties,
    }
    found = ClientSettings.from_properties({name: text for name, text in given.items() if text}).login()
    assert isinstance(found, TokenLogin)
    return found


def provider_and_options(properties: dict[str, str]) -> tuple[str, dict[str, str]]:
    name, options, _ = login(**properties).tokens.key
    return name, dict(options)


CASES: list[tuple[dict[str, str], str, dict[str, str]]] = [
    ({"sasl.mechanism": "AWS_MSK_IAM"}, "aws-msk", {}),
    ({"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{IAM};", **AMAZON}, "aws-msk", {}),
    ({"sasl.mechanism": "", "sasl.jaas.config": f"{IAM};"}, "aws-msk", {}),
    (
        {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f'{IAM} awsRoleArn="{ROLE}" awsRoleSessionName="s" awsRoleExternalId="x" '
            'awsStsRegion="us-west-2" awsMaxRetries="7" awsAddDefaultProviders="false" awsDebugCreds=true;',
        },
        "aws-msk",
        {
            "aws.role.arn": ROLE,
            "aws.role.session.name": "s",
            "aws.role.external.id": "x",
            "aws.sts.region": "us-west-2",
        },
    ),
    ({"sasl.jaas.config": f"{OAUTH} awsProfileName=p;", **AMAZONS_TOKEN}, "aws-msk", {"aws.profile": "p"}),
    ({**AMAZONS_TOKEN, "aws.region": "us-east-1"}, "aws-msk", {"aws.region": "us-east-1"}),
    ({"sasl.jaas.config": f"{OAUTH};", **GOOGLE}, "google", {}),
    ({"sasl.jaas.config": f"{OAUTH};", **MICROSOFTS_SAMPLE}, "azure", {}),
    (
        {"sasl.jaas.config": f'{OAUTH} azure.configured="true" azure.credential.client-id="1-2";', **SPRING},
        "azure",
        {"azure.client.id": "1-2"},
    ),
    (
        {
            "sasl.jaas.config": f'{OAUTH} oauth.token.endpoint.uri="https://id.example/t" oauth.client.id="c" '
            'oauth.client.secret="s" oauth.scope="a b" oauth.audience="kafka" oauth.http.retries="1" '
            'oauth.username.claim="x" oauth.ssl.truststore.location="/ca.pem" oauth.sasl.extension.team="t" '
            'oauth.client.credentials.grant.type="client_credentials";',
            **STRIMZI,
        },
        "oidc",
        {
            URL: "https://id.example/t",
            "clientId": "c",
            "clientSecret": "s",
            "scope": "a b",
            "audience": "kafka",
            "ssl.truststore.location": "/ca.pem",
        },
    ),
    (
        {"sasl.jaas.config": f'{OAUTH} oauth.access.token.location="/run/token";', **STRIMZI},
        "file",
        {URL: "file:///run/token"},
    ),
    (
        # As Databricks' pages have it for Event Hubs.
        {
            URL: "https://login.microsoft.com/tenant/oauth2/v2.0/token",
            "sasl.jaas.config": f'{OAUTH} clientId="c" clientSecret="s" scope="https://n/.default" ssl.protocol="SSL";',
            **KAFKA,
        },
        "oidc",
        {
            URL: "https://login.microsoft.com/tenant/oauth2/v2.0/token",
            "clientId": "c",
            "clientSecret": "s",
            "scope": "https://n/.default",
            "ssl.protocol": "SSL",
        },
    ),
    (
        {
            URL: "file:///run/token",
            "sasl.oauthbearer.jwt.retriever.class": f"{RETRIEVER}.FileJwtRetriever",
            "sasl.oauthbearer.jwt.validator.class": f"{RETRIEVER}.ClientJwtValidator",
        },
        "file",
        {URL: "file:///run/token"},
    ),
    (
        {
            URL: "https://id.example/t",
            "sasl.oauthbearer.jwt.retriever.class": f"{RETRIEVER}.ClientCredentialsJwtRetriever",
            "sasl.oauthbearer.client.credentials.client.id": "c",
            "sasl.oauthbearer.client.credentials.client.secret": "s",
        },
        "oidc",
        {URL: "https://id.example/t", "clientId": "c", "clientSecret": "s"},
    ),
]


@pytest.mark.parametrize(("properties", "provider", "options"), CASES)
def test_what_is_known_comes_to_the_same(properties: dict[str, str], provider: str, options: dict[str, str]) -> None:
    assert provider_and_options(properties) == (provider, options)


def test_the_extensions_of_strimzi_are_sent() -> None:
    jaas = f'{OAUTH} oauth.access.token.location="/run/token" oauth.sasl.extension.team="t";'
    assert login(**{"sasl.jaas.config": jaas, **STRIMZI}).extensions == {"team": "t"}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{IAM} awsProfileName=p awsRoleArn={ROLE};"},
            "awsProfileName and awsRoleArn are alternatives there",
        ),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{IAM} awsRoleARN={ROLE};"},
            "awsRoleARN is no option that is known of .*there are awsProfileName, awsRoleArn",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{IAM};"},
            "sasl.mechanism=PLAIN: IAMLoginModule is for OAUTH",
        ),
        (
            {"sasl.jaas.config": f"{IAM};"},
            "sasl.mechanism=OAUTHBEARER needs OAuthBearerLoginModule, not IAMLoginModule",
        ),
        (
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "a.ScramLoginModule required username=u password=s3cret;",
            },
            "sasl.mechanism=AWS_MSK_IAM needs IAMLoginModule, not ScramLoginModule",
        ),
        (
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "s3cret", **GOOGLE},
            "sasl.mechanism=SCRAM-SHA-512: GcpLoginCallbackHandler is for OAUTHBEARER",
        ),
        ({**AMAZON, **GOOGLE}, "are classes of different services"),
        ({**GOOGLE, "sasl.oauthbearer.token.provider": "azure"}, "stand for google; leave out one of the two"),
        ({"sasl.jaas.config": f"{OAUTH} clientId=c;", **GOOGLE}, "clientId is no option that is known of GcpLogin"),
        ({"sasl.jaas.config": f'{OAUTH} oauth.client.id="c";', **STRIMZI}, f"set {URL}"),
        ({"sasl.login.callback.handler.class": "com.example.Mine"}, "not known; set sasl.oauthbearer.token.provider"),
        (
            {"sasl.oauthbearer.jwt.retriever.class": f"{RETRIEVER}.JwtBearerJwtRetriever"},
            "JwtBearerJwtRetriever is not built in: it signs assertions",
        ),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "bootstrap.servers": "kafka.example"},
            "set aws.region, which 'kafka.example' does not tell",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        login(**properties)
    assert "s3cret" not in str(caught.value)


def _of(one: ForeignLogin, name: str, value: str) -> dict[str, str]:
    if "IAMLoginModule" in one.classes:
        return {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f'{IAM} {name}="{value}";'}
    return {
        "sasl.login.callback.handler.class": one.classes[-1],
        "sasl.jaas.config": f'{OAUTH} oauth.token.endpoint.uri="https://id.example" {name}="{value}";'
        if one.provider == "oidc"
        else f'{OAUTH} {name}="{value}";',
    }


@pytest.mark.parametrize(
    ("one", "name", "why"), [(one, name, why) for one in FOREIGN for name, why in one.refused.items()]
)
def test_every_option_that_cannot_be_had_is_refused_with_what_to_set(one: ForeignLogin, name: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        login(**_of(one, name.replace("*", ".x"), "a-s3cret"))
    assert str(caught.value) == f"sasl.jaas.config: {name.replace('*', '.x')} is not supported: {why}"


@pytest.mark.parametrize(("one", "name"), [(one, name) for one in FOREIGN for name in one.ignored])
def test_every_option_that_does_not_matter_is_accepted(one: ForeignLogin, name: str) -> None:
    more = {"sasl.oauthbearer.client.id": "c", "sasl.oauthbearer.client.secret": "s"} if one.provider == "oidc" else {}
    assert login(**_of(one, name.replace("*", "x"), "1"), **more).tokens.provider.name == one.provider


@pytest.mark.parametrize("name", UNKNOWN)
def test_every_class_that_does_what_nothing_here_does_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not built in: "):
        login(**{"sasl.oauthbearer.jwt.retriever.class": f"{RETRIEVER}.{name}"})


def test_the_page_for_movers_shows_the_table() -> None:
    page = (ROOT / "docs" / "how-to" / "move-from-spark-kafka.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert [name for name in _shown(FOREIGN) if not any(f"`{name}`" in row for row in rows)] == []


def _shown(logins: Iterable[ForeignLogin]) -> list[str]:
    return [name for one in logins for name in (*one.classes, *one.options, *one.options.values(), *one.refused)]


def test_a_location_is_a_path_of_this_machine(tmp_path: Path) -> None:
    jaas = f'{OAUTH} oauth.access.token.location="{tmp_path}/a token";'
    (tmp_path / "a token").write_text("opaque\n")
    assert login(**{"sasl.jaas.config": jaas, **STRIMZI}).tokens.token() == "opaque"
