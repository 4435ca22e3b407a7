"""Tokens for Amazon MSK: botocore's own SigV4 verifies them, and moto's STS gives the roles."""

from __future__ import annotations

import base64
import time
import urllib.parse
from pathlib import Path

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from moto import mock_aws
from moto.sts.models import sts_backends

from broker.errors import AuthenticationFailed, ConfigError
from broker.security.token_providers.aws_msk import PROVIDER
from broker.security.token_source import TokenSource

BROKER = "b-1.flights.abc.c2.kafka.eu-central-1.amazonaws.com"
ROLE = "arn:aws:iam::123456789012:role/loader"
KEYS = ("AKIAIOSFODNN7EXAMPLE", "default-s3cret")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two profiles."""
    profiles = "".join(
        f"[{name}]\naws_access_key_id={key}\naws_secret_access_key={secret}\n"
        for name, key, secret in (("default", *KEYS), ("other", "AKIAOTHEREXAMPLE0000", "other-s3cret"))
    )
    (tmp_path / "credentials").write_text(profiles)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def source(host: str = BROKER, **options: str) -> TokenSource:
    asked = {name.replace("_", "."): text for name, text in options.items()}
    PROVIDER.check(asked, host)
    return TokenSource(PROVIDER, asked, host)


def check_signature(token: str, region: str, credentials: ReadOnlyCredentials) -> dict[str, str]:
    """The query of the signed URL, whose signature botocore computes as well."""
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))
    signed = {name: text for name, text in query.items() if name not in ("X-Amz-Signature", "User-Agent")}
    request = AWSRequest(
        "GET", f"https://{parts.netloc}/?{urllib.parse.urlencode(signed, quote_via=urllib.parse.quote)}"
    )
    request.context["timestamp"] = query["X-Amz-Date"]
    auth = SigV4QueryAuth(credentials, "kafka-cluster", region, expires=int(query["X-Amz-Expires"]))
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert query["X-Amz-Signature"] == expected
    assert parts.netloc == f"kafka.{region}.amazonaws.com"
    assert query["Action"] == "kafka-cluster:Connect"
    return query


def test_a_token_is_signed_with_the_credentials_that_are_found() -> None:
    found = source()
    provided = found.current()
    query = check_signature(provided.token, "eu-central-1", ReadOnlyCredentials(*KEYS, None))
    assert query["X-Amz-Credential"].startswith(f"{KEYS[0]}/")
    assert 880 < provided.lifetime_s <= 900
    assert found.principal == f"access key {KEYS[0]}"
    assert found.holds


def test_a_profile_may_be_named() -> None:
    token = source(aws_profile="other").token()
    check_signature(token, "eu-central-1", ReadOnlyCredentials("AKIAOTHEREXAMPLE0000", "other-s3cret", None))


@mock_aws
def test_a_role_is_assumed_first() -> None:
    found = source(
        aws_role_arn=ROLE, aws_role_session_name="job-7", aws_role_external_id="x-1", aws_sts_region="us-west-2"
    )
    token = found.token()
    (role,) = sts_backends["123456789012"]["aws"].assumed_roles
    assert (role.arn, role.session_name, role.external_id) == (
        ROLE.replace(":iam:", ":sts:").replace("role/", "assumed-role/") + "/job-7",
        "job-7",
        "x-1",
    )
    given = ReadOnlyCredentials(role.access_key_id, role.secret_access_key, role.session_token)
    assert check_signature(token, "eu-central-1", given)["X-Amz-Security-Token"] == role.session_token
    assert found.principal == ROLE


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (BROKER, "eu-central-1"),
        ("boot-1x.c1.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("b-2-public.a.b.c3.kafka.ap-south-1.amazonaws.com", "ap-south-1"),
        ("b-1.a.b.c3.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
    ],
)
def test_the_region_is_in_the_brokers_name(host: str, region: str) -> None:
    check_signature(source(host).token(), region, ReadOnlyCredentials(*KEYS, None))


def test_a_region_that_is_set_wins() -> None:
    check_signature(source(aws_region="us-west-1").token(), "us-west-1", ReadOnlyCredentials(*KEYS, None))


class TestMistakes:
    def test_a_broker_by_another_name_needs_a_region(self) -> None:
        with pytest.raises(ConfigError, match="set aws.region, which 'kafka.example' does not tell"):
            source("kafka.example")

    def test_an_option_of_a_role_needs_the_role(self) -> None:
        with pytest.raises(ConfigError, match=r"aws.role.external.id is for the role of aws.role.arn"):
            source(aws_role_external_id="x")

    def test_an_option_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="aws-msk has no option aws.rolearn; it has aws.region, aws.profile"):
            source(aws_rolearn="x")

    def test_a_profile_that_is_not_there(self) -> None:
        with pytest.raises(AuthenticationFailed, match=r"aws-msk: The config profile \(mine\) could not be found"):
            source(aws_profile="mine").token()

    def test_a_machine_without_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        with pytest.raises(AuthenticationFailed, match="no credentials of AWS were found"):
            source().token()

    def test_a_library_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "aws_msk_iam_sasl_signer", None)
        with pytest.raises(ConfigError, match=r'pip install "pykafka-spark\[msk\]"'):
            source().token()


def test_no_clock_is_asked_twice() -> None:
    began = time.time()
    assert source().current().lifetime_s <= 900 + time.time() - began
