"""URLs and messages without passwords, signatures and tokens, for records, logs and pages."""

from __future__ import annotations

import re

# As SQLAlchemy parses it: a user name may hold an @, a password may hold anything else.
_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:/]*):(?:[^?]*|[^@]*)@")
# In the URL of a file the password ends before the first slash; a path may hold an @.
_OF_FILES = re.compile(r"(?:https?|s?ftp|\w*hdfs|viewfs|s3a?|gs|gcs|abfss?|wasbs?|adl|az|memory)://", re.IGNORECASE)
_PASSWORD_OF_FILES = re.compile(r"(?<=://)(?P<user>[^:/?#]*):[^/?#]*@")
_LOCAL = re.compile(r"/|(?:file|local):", re.IGNORECASE)
# Whose paths hold any character: what looks like a query is a part of a name.
_HADOOP = re.compile(r"(?:hdfs|viewfs)://", re.IGNORECASE)
# A user without a password may be a token of a web server. In abfss://container@account and s3://key@bucket it is none.
_WEB_USER = re.compile(r"(?<=^http://)[^/@?#:]*@|(?<=^https://)[^/@?#:]*@", re.IGNORECASE)
# Signatures: Azure's sig, those of AWS and Google; names that programs give to keys and tokens.
_NAME = (
    r"[^=&#;?/]*(?:password|passwd|passphrase|pwd|token|secret|signature|credential|authorization|sslkey|odbc_connect"
    r"|(?:account|access|api|shared|private|subscription)[-_ ]?key|accessid)[^=&#;?/]*"
    r"|sig|pass|key|code|auth"
)
_SECRET = re.compile(rf"(?P<name>[?&#](?:{_NAME})=)[^&#]*", re.IGNORECASE)
_IN_A_LIST = re.compile(rf"(?P<name>(?:^|;)\s*(?:{_NAME})=)[^;]*", re.IGNORECASE)
_URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s'"<>]+""")


def without_secrets(url: str) -> str:
    """The URL, or the list of `name=value;` that is a connection string, with `***` for each of them."""
    if _LOCAL.match(url):
        return url
    password = _PASSWORD_OF_FILES if _OF_FILES.match(url) else _PASSWORD
    shown = _WEB_USER.sub("***@", password.sub(r"\g<user>:***@", url))
    if _HADOOP.match(url):
        return shown
    return _IN_A_LIST.sub(r"\g<name>***", _SECRET.sub(r"\g<name>***", shown))


def text_without_secrets(text: str) -> str:
    """A message of a library, with `***` for the secrets of every URL in it."""
    return _URL.sub(lambda found: without_secrets(found[0]), text)
