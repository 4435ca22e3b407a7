"""`python -m tests.support.iam_broker start …` is our broker, but its listener IAM takes tokens as Amazon MSK does.

Such a token is a signed URL. Whether the signature is right is judged by the tests of the provider; here it is looked
at who signed what. IamTokens.java does the same in an Apache Kafka.
"""

from __future__ import annotations

import base64
import sys
import urllib.parse
from typing import Any

from broker.net import listener
from broker.net.token_verifier import token_verifier
from broker.security.access_token import AccessToken, TokenRefused
from broker.tools.main import main
from tests.support.aws_profiles import ACCESS_KEY, REGION


class IamTokens:
    def start(self) -> None:
        """There is nothing to fetch."""

    def close(self) -> None:
        """There is nothing to close."""

    async def verify(self, token: str) -> AccessToken:
        url = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
        asked = dict(urllib.parse.parse_qsl(url.query))
        key, *_ = asked["X-Amz-Credential"].split("/")
        right = url.hostname == f"kafka.{REGION}.amazonaws.com" and asked["Action"] == "kafka-cluster:Connect"
        if not (right and key == ACCESS_KEY):
            raise TokenRefused("it is not one of the right role")
        return AccessToken(key, int(asked["X-Amz-Expires"]) * 1000)


def _verifier(security: Any, clock: Any = None) -> Any:
    return IamTokens() if security.listener.name == "IAM" else token_verifier(security, clock)


if __name__ == "__main__":
    vars(listener)["token_verifier"] = _verifier
    main(["broker", *sys.argv[1:]])
