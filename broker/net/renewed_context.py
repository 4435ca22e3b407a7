"""TLS contexts that are made again when the files of their keys and certificates change, as when these are renewed."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable

from broker.errors import ConfigError
from broker.security.stores import StoreSettings

logger = logging.getLogger(__name__)

_Version = tuple[int, int, int] | None


class RenewedContext:
    """The `context` of one listener. Connections keep the one that they were opened with."""

    def __init__(self, name: str, settings: StoreSettings, make: Callable[[], ssl.SSLContext]) -> None:
        """`name` says in the log whose it is. Raises ConfigError if `make` does."""
        self._name = name
        self._files = [path for path in (settings.ssl_keystore_location, settings.ssl_truststore_location) if path]
        self._make = make
        self._versions = self._look()
        self.context = make()

    def renew(self) -> bool:
        """Make the context again if a file has changed; whether it was.

        Files that cannot be used are told once, and the context stays: a file may be half written, and its next
        version is looked at again.
        """
        found = self._look()
        if found == self._versions:
            return False
        self._versions = found
        try:
            self.context = self._make()
        except ConfigError as error:
            logger.error("%s: the changed certificates cannot be used, those from before stay: %s", self._name, error)
            return False
        logger.info("%s: new connections use the changed certificates in %s", self._name, ", ".join(self._files))
        return True

    def _look(self) -> list[_Version]:
        return [_version(path) for path in self._files]


def _version(path: str) -> _Version:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
