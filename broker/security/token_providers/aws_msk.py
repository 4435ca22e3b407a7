"""Tokens of AWS IAM for Amazon MSK: a URL that is signed with the credentials of this process (SigV4).

Amazon's signer makes them from whatever botocore finds: variables of the environment, a profile, the role of an
instance, of a container or of a Kubernetes service account. With `aws.role.arn` that role is assumed first.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from broker.errors import ConfigError
from broker.security.identity_provider import ProviderFailed
from broker.security.token_providers.provider import (
    Options,
    ProvidedToken,
    TokenProvider,
    missing_library,
    only_known,
)

OPTIONS: Final = (
    *("aws.region", "aws.profile", "aws.role.arn", "aws.role.session.name", "aws.role.external.id", "aws.sts.region"),
)
_BROKER: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_SESSION: Final = "pykafka"
_LATER: Final = ("Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable", "InternalFailure")


def region(options: Options, host: str) -> str:
    """`aws.region`, or the region in the broker's name. Raises ConfigError."""
    found = _BROKER.search(host.lower())
    if set_one := options.get("aws.region"):
        return set_one
    if found is None:
        raise ConfigError(f"sasl.oauthbearer.token.provider=aws-msk: set aws.region, which {host!r} does not tell")
    return found[1]


def check(options: Options, host: str) -> None:
    only_known("aws-msk", options, OPTIONS)
    if host:
        region(options, host)
    needs_role = ("aws.role.session.name", "aws.role.external.id", "aws.sts.region")
    if without := [name for name in needs_role if name in options and "aws.role.arn" not in options]:
        raise ConfigError(f"{without[0]} is for the role of aws.role.arn, which is not set")


def retrieve(options: Options, host: str) -> ProvidedToken:
    try:
        import botocore.exceptions
        import botocore.session
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.credentials import CredentialProvider
    except ImportError as error:
        raise missing_library("aws-msk", "msk", error) from None

    class Found(CredentialProvider):  # type: ignore[misc]
        def load(self) -> Any:
            return credentials

    of_brokers = region(options, host)
    try:
        credentials = _credentials(botocore.session.Session(profile=options.get("aws.profile")), options, of_brokers)
        made = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(of_brokers, Found())
    except botocore.exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise ProviderFailed(str(error), refused=code not in _LATER) from None
    except (botocore.exceptions.HTTPClientError, botocore.exceptions.MetadataRetrievalError) as error:
        raise ProviderFailed(str(error)) from None
    except botocore.exceptions.BotoCoreError as error:
        raise ProviderFailed(str(error), refused=True) from None
    token, expires_ms = made
    return ProvidedToken(
        token,
        expires_ms / 1000 - time.time(),
        principal=options.get("aws.role.arn") or f"access key {credentials.access_key}",
    )


def _credentials(session: Any, options: Options, of_brokers: str) -> Any:
    found = session.get_credentials()
    if found is None:
        raise ProviderFailed("no credentials of AWS were found on this machine", refused=True)
    role = options.get("aws.role.arn")
    if role is None:
        return found.get_frozen_credentials()
    from botocore.credentials import ReadOnlyCredentials

    asked = {"RoleArn": role, "RoleSessionName": options.get("aws.role.session.name", _SESSION)}
    if "aws.role.external.id" in options:
        asked["ExternalId"] = options["aws.role.external.id"]
    sts = session.create_client("sts", region_name=options.get("aws.sts.region", of_brokers))
    given = sts.assume_role(**asked)["Credentials"]
    return ReadOnlyCredentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


PROVIDER = TokenProvider(
    "aws-msk",
    retrieve,
    "check that its policy allows kafka-cluster:Connect for this cluster, that aws.region is the cluster's, and that "
    "the listener is the one for IAM (port 9098, or 9198 in public)",
    check,
)
