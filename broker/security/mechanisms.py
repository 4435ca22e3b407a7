"""The SASL mechanisms, each declared once: its name, and the login module that a `sasl.jaas.config` names for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OAUTHBEARER: Final = "OAUTHBEARER"
LOGIN_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
MECHANISMS: Final = tuple(LOGIN_MODULES)
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
"""Amazon's own. Its listeners take OAUTHBEARER, too, with a token that is the same signature; clients send that."""
