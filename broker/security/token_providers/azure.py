"""Tokens of Microsoft Entra ID for Azure Event Hubs, from azure-identity's default chain of credentials.

It takes the first that is there: a service principal in variables of the environment, the workload identity of a
Kubernetes service account, the managed identity of a machine, or the login of Azure's command line.
"""

from __future__ import annotations

import time
from typing import Any, Final

from broker.security.access_token import TokenRefused, read_json
from broker.security.identity_provider import ProviderFailed
from broker.security.token_providers.provider import (
    Options,
    ProvidedToken,
    TokenProvider,
    missing_library,
    only_known,
)

OPTIONS: Final = ("azure.scope", "azure.client.id")


def check(options: Options, host: str) -> None:
    only_known("azure", options, OPTIONS)


def retrieve(options: Options, host: str) -> ProvidedToken:
    try:
        import azure.core.exceptions
        import azure.identity
    except ImportError as error:
        raise missing_library("azure", "azure", error) from None
    chosen: dict[str, Any] = {}
    if client_id := options.get("azure.client.id"):
        chosen = {"managed_identity_client_id": client_id, "workload_identity_client_id": client_id}
    try:
        with azure.identity.DefaultAzureCredential(**chosen) as credential:
            found = credential.get_token(options.get("azure.scope", f"https://{host}/.default"))
    except azure.core.exceptions.ClientAuthenticationError as error:
        raise ProviderFailed(error.message, refused=True) from None
    except azure.core.exceptions.AzureError as error:
        raise ProviderFailed(error.message) from None
    return ProvidedToken(found.token, found.expires_on - time.time(), principal=_principal(found.token))


def _principal(token: str) -> str:
    """The application, or the user, as far as the token tells."""
    try:
        claims = read_json(token.split(".")[1])
    except (TokenRefused, IndexError):
        return ""
    return str(claims.get("appid") or claims.get("upn") or claims.get("oid") or "")


PROVIDER = TokenProvider(
    "azure",
    retrieve,
    "check that it has the role Azure Event Hubs Data Receiver, Sender or Owner, and that azure.scope is "
    "https://NAMESPACE.servicebus.windows.net/.default",
    check,
)
