"""URLs without passwords and tokens, for records, messages and pages."""

from __future__ import annotations

import re

__all__ = ["without_secrets"]

# As SQLAlchemy parses it: a user name may hold an @, a password may hold anything else.
_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:/]*):(?:[^?]*|[^@]*)@")
_SECRET = re.compile(
    r"(?P<name>[?&][^=&#]*(?:password|passwd|pwd|token|secret|sslkey|odbc_connect)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def without_secrets(url: str) -> str:
    """The URL with `***` for each of them."""
    return _SECRET.sub(r"\g<name>***", _PASSWORD.sub(r"\g<user>:***@", url))
