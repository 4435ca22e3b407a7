"""Tokens for Google Cloud's Managed Service for Apache Kafka, from the application default credentials.

Its brokers take Google's access token in a form of their own, three parts in base64url that look like a JWT: a header,
who the account is and when the token expires, and the access token.
"""

from __future__ import annotations

import base64
import datetime
import json
import time
from typing import Any, Final

from broker.security.identity_provider import ProviderFailed
from broker.security.token_providers.provider import (
    Options,
    ProvidedToken,
    TokenProvider,
    missing_library,
    only_known,
)

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_HEADER: Final = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}


def check(options: Options, host: str) -> None:
    only_known("google", options, ())


def retrieve(options: Options, host: str) -> ProvidedToken:
    try:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests
    except ImportError as error:
        raise missing_library("google", "gcp", error) from None
    credentials: Any
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        credentials.refresh(google.auth.transport.requests.Request())
    except google.auth.exceptions.GoogleAuthError as error:
        away = isinstance(error, google.auth.exceptions.TransportError) or error.retryable
        raise ProviderFailed(str(error.args[0] if error.args else error), refused=not away) from None
    account = getattr(credentials, "service_account_email", None)
    if not account:
        raise ProviderFailed("the application default credentials are not of a service account", refused=True)
    expires_s = credentials.expiry.replace(tzinfo=datetime.UTC).timestamp()
    now_s = time.time()
    claims = {"exp": int(expires_s), "iat": int(now_s), "scope": "kafka", "sub": account}
    parts = (json.dumps(_HEADER), json.dumps(claims), credentials.token)
    token = ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)
    return ProvidedToken(token, expires_s - now_s, principal=account)


PROVIDER = TokenProvider(
    "google", retrieve, "check that the account has the role roles/managedkafka.client in the cluster's project", check
)
