"""Requests to an identity provider: a broker asks for keys, a client for tokens. Blocking: never on the event loop.

A URL is https, or http to this machine only. Whoever can change what a broker reads over http chooses the keys, and can
then log in as anybody; and a client's secret would be readable. So Kafka's http to other hosts is refused here.
Redirects are not followed, so a URL means what it says. `file:` URLs name a file on this machine. Errors show a URL
without its query, and never a body.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from broker.errors import ConfigError, PykafkaError
from broker.security.stores import StoreSettings, has_key, has_trust, load_key, load_trust
from broker.settings import parse_properties, settings_of

if TYPE_CHECKING:
    import urllib.error
    import urllib.request

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1024 * 1024
_PROTOCOL: Final = "ssl.protocol"
"""Configurations of Java say SSL or TLS there; what is spoken is always TLS, 1.2 or newer."""
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class ProviderFailed(PykafkaError):
    """The identity provider or the file did not give what was asked for."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Whether the same request will be refused again."""


def require_url(setting: str, value: str) -> None:
    """Raise ConfigError unless the value of `setting` is a URL that may be used. The error shows it without secrets."""
    if complaint := _complaint(value):
        raise ConfigError(f"{setting}={shown(value)}: {complaint}")


def _complaint(value: str) -> str | None:
    try:
        url = urlsplit(value)
        host, _ = url.hostname, url.port
    except ValueError:
        return "is not a URL"
    if url.scheme == "file":
        return None if url.path and host in (None, "localhost") else "a file is named file:///path"
    if url.scheme not in ("https", "http") or not host:
        return "expected https://host/path or file:///path"
    if "@" in url.netloc:
        return "must not have a user or a password"
    if url.scheme == "http" and not _is_loopback(host):
        return "must be https: over http anybody on the way could change the answer"
    return None


def is_file(url: str) -> bool:
    return url.lower().startswith("file:")


def shown(url: str) -> str:
    """`url` for messages, without what may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    return SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "").geturl()


def provider_context(options: Mapping[str, str], where: str) -> ssl.SSLContext:
    """For https: the `ssl.…` options of a JAAS configuration name stores, as in Kafka; by default the operating
    system's authorities are trusted. Raises ConfigError."""
    known = settings_of(StoreSettings)
    own = {name: text for name, text in options.items() if name.startswith("ssl.") and name != _PROTOCOL}
    if unknown := [name for name in own if name not in known]:
        raise ConfigError(f"{where}: {unknown[0]} is not supported; there are {', '.join(known)}")
    stores = parse_properties(StoreSettings, own)
    context = ssl.create_default_context() if not has_trust(stores) else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if has_trust(stores):
        load_trust(context, stores)
    if has_key(stores):
        load_key(context, stores)
    return context


def read_url(
    url: str,
    context: ssl.SSLContext | None = None,
    *,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """What is at `url`, at most MAX_BYTES; `form` is posted. Raises ProviderFailed."""
    import http.client  # these are 600 KB, for listeners and clients with tokens only
    import urllib.error
    import urllib.request

    where, parts = shown(url), urlsplit(url)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                return _whole(file, where, timeout_s)
        request = urllib.request.Request(url, form, {"Accept": "application/json", **(headers or {})})
        with _opener(parts.hostname or "", context).open(request, timeout=timeout_s) as response:
            return _whole(response, where, timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise _http_failure(where, error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ProviderFailed(f"{where}: {reason}") from None


def _opener(host: str, context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Follows no redirects."""
    import urllib.request

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler({} if _is_loopback(host) else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _whole(stream: Any, where: str, timeout_s: float) -> bytes:
    """The whole stream. A sender that trickles is given up."""
    deadline, found = time.monotonic() + timeout_s, bytearray()
    while chunk := stream.read1(65536):
        found += chunk
        if len(found) > MAX_BYTES:
            raise ProviderFailed(f"{where}: the answer is longer than {MAX_BYTES} bytes", refused=True)
        if time.monotonic() > deadline:
            raise ProviderFailed(f"{where}: the answer took longer than {timeout_s:g} s")
    return bytes(found)


def _http_failure(where: str, error: urllib.error.HTTPError) -> ProviderFailed:
    """The status, and the error code of RFC 6749 if there is one, such as invalid_client."""
    code = None
    try:
        code = json.loads(error.read(4096))["error"]
    except Exception:  # whatever the provider sent
        pass
    told = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    hint = "; set the URL that it redirects to" if 300 <= error.code < 400 else ""
    refused = error.code < 500 and error.code not in (408, 425, 429)
    return ProviderFailed(f"{where}: HTTP {error.code}{told}{hint}", refused=refused)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
