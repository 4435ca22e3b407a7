"""What a person can do about a failure of a store that no waiting heals: a missing bucket, missing or wrong keys.

The libraries behind the stores tell it in many words, and none says where pykafka takes the keys from. Pure.
"""

from __future__ import annotations

import re

_NO_BUCKET = re.compile(r"NO_?SUCH_?BUCKET|ContainerNotFound|specified (?:bucket|container) does not", re.IGNORECASE)
_NO_KEYS = re.compile(
    r"(?:NoCredentials|PartialCredentials|ClientAuthentication|DefaultCredentials|CredentialUnavailable)Error"
    r"|Unable to locate credentials|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch"
    r"|SIGNATURE_DOES_NOT_MATCH|AuthenticationFailed"
)
_KEYS = {
    "s3": ("key and secret", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": ("token, a file of a service account", "GOOGLE_APPLICATION_CREDENTIALS"),
    "abfs": ("account_name and account_key", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
"""By the scheme of a store: the storage options of a login, and the variables of the environment."""
_SCHEMES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}


def way_out(text: str) -> str:
    """A sentence to put behind the text of a failure; empty where there is nothing to say."""
    if _NO_BUCKET.search(text):
        return (
            ". There is no such bucket: create it, or mend its name, or the region or endpoint_url (storage_options, "
            "--storage-option)"
        )
    if _NO_KEYS.search(text):
        scheme = text.partition("://")[0].rpartition(" ")[2].strip("'").lower()
        options, variables = _KEYS.get(_SCHEMES.get(scheme, scheme), _KEYS["s3"])
        return f". Set the storage options {options} (storage_options, --storage-option), or {variables}"
    return ""
