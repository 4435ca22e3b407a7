"""Object stores, `s3://`, `gs://` and `abfs://`, in which a Delta table may lie: their options and errors.

Two libraries meet a store: fsspec's file system (staging, data files) and Rust's object_store, within `deltalake` (the
log of the table). A user gives each option once, by the name that fsspec's users know; here it becomes the option of
both. An option that only one of them could obey is refused: they would write to two places, or as two users. What is
not given comes from the environment, which both read; where they differ (region and endpoint of AWS), it is read here.

Used by storage.py. No library of a store is imported before `require` has found it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from broker.errors import ConfigError

_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs")
_FLAGS = {"true": True, "false": False}
_ENDPOINT, _ANON, _REGION = "endpoint_url", "anon", "region"


@dataclass(frozen=True)
class ObjectStore:
    """One kind of store. `options`: the user's name → (fsspec's name, object_store's name)."""

    scheme: str
    filesystem: str
    """Module and class."""
    extra: str
    options: Mapping[str, tuple[str, str]]
    aliases: tuple[str, ...] = ()
    """Other schemes of the same store, which become `scheme`: one table has one name."""
    always: Mapping[str, str] = field(default_factory=dict)
    """object_store's options that no user may change."""

    def require(self) -> None:
        """Raise ConfigError where the library is not installed."""
        library = self.filesystem.partition(".")[0]
        if find_spec(library) is None:
            raise ConfigError(f"{self.scheme}:// needs {library}: pip install 'pykafka-spark[{self.extra}]'")

    def open(self, url: str, options: Mapping[str, str]) -> tuple[Any, str]:
        """fsspec's file system and the path within, of checked options. Raises the errors of the library."""
        module, _, name = self.filesystem.rpartition(".")
        kind = getattr(import_module(module), name)
        arguments = {**kind._get_kwargs_from_urls(url), **self.for_fsspec(options)}
        return ObjectCalls(kind(**arguments)), kind._strip_protocol(url)

    def checked(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The options as text, completed from the environment. Raises ConfigError; never quotes a value."""
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            raise ConfigError(
                f"storage option {', '.join(unknown)}: {self.scheme}:// takes {', '.join(self.options)}; what is not "
                "given comes from the environment"
            )
        given = {name: str(value).strip() for name, value in options.items() if str(value).strip()}
        if _ANON in given:
            given[_ANON] = given[_ANON].lower()
        if given.get(_ANON, "false") not in _FLAGS:
            raise ConfigError(f"storage option {_ANON} must be true or false")
        endpoint = given.get(_ENDPOINT, "http://")
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"storage option {_ENDPOINT} must begin with http:// or https://")
        return {**self._from_environment(), **given}

    def _from_environment(self) -> dict[str, str]:
        """botocore reads AWS_DEFAULT_REGION, object_store also AWS_REGION; and it refuses http:// unless it is told."""
        if self.scheme != "s3":
            return {}
        names = {
            _ENDPOINT: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            _REGION: ("AWS_REGION", "AWS_DEFAULT_REGION"),
        }
        found = {
            option: next((os.environ[name] for name in known if os.environ.get(name)), "")
            for option, known in names.items()
        }
        return {option: value for option, value in found.items() if value}

    def for_fsspec(self, options: Mapping[str, str]) -> dict[str, Any]:
        """The arguments of the file system. It must not remember lists: other processes write, too."""
        named: dict[str, Any] = {"use_listings_cache": False}
        for name, value in options.items():
            named[self.options[name][0]] = value
        if _ANON in options:
            named[self.options[_ANON][0]] = _FLAGS[options[_ANON]]
        if self.scheme == "s3" and _REGION in options:
            named["client_kwargs"] = {"region_name": named.pop(_REGION)}
        if self.scheme == "gs" and named.pop(_ANON, False):
            named["token"] = "anon"
        if self.scheme == "abfs" and _ENDPOINT in options:
            named = {**_connection(options), "use_listings_cache": False}
        return named

    def for_object_store(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options of `deltalake`."""
        named = {self.options[name][1]: value for name, value in options.items() if self.options[name][1]}
        if options.get(_ENDPOINT, "").startswith("http://"):
            named["allow_http"] = "true"
        return {**named, **self.always}


def _connection(options: Mapping[str, str]) -> dict[str, Any]:
    """adlfs takes an endpoint of one's own only within a connection string."""
    if not (options.get("account_name") and options.get("account_key")):
        raise ConfigError(f"storage option {_ENDPOINT} of abfs:// goes with account_name and account_key")
    endpoint, name, key = options[_ENDPOINT], options["account_name"], options["account_key"]
    protocol = endpoint.partition(":")[0]
    parts = [
        f"DefaultEndpointsProtocol={protocol}",
        f"AccountName={name}",
        f"AccountKey={key}",
        f"BlobEndpoint={endpoint}",
    ]
    return {"connection_string": ";".join(parts), "account_name": name}


_STORES = (
    ObjectStore(
        "s3",
        "s3fs.S3FileSystem",
        "s3",
        {
            "key": ("key", "aws_access_key_id"),
            "secret": ("secret", "aws_secret_access_key"),
            "token": ("token", "aws_session_token"),
            _REGION: (_REGION, "aws_region"),
            _ENDPOINT: (_ENDPOINT, "aws_endpoint"),
            _ANON: (_ANON, "aws_skip_signature"),
        },
        ("s3a",),
        {"aws_conditional_put": "etag"},
    ),
    ObjectStore(
        "gs",
        "gcsfs.core.GCSFileSystem",  # not what `gcsfs` chooses, which asks for the kind of the bucket by gRPC first
        "gcs",
        {
            "token": ("token", "google_service_account"),
            "project": ("project", ""),
            _ENDPOINT: (_ENDPOINT, "google_base_url"),
            _ANON: (_ANON, "google_skip_signature"),
        },
        ("gcs",),
    ),
    ObjectStore(
        "abfs",
        "adlfs.AzureBlobFileSystem",
        "azure",
        {
            "account_name": ("account_name", "azure_storage_account_name"),
            "account_key": ("account_key", "azure_storage_account_key"),
            "sas_token": ("sas_token", "azure_storage_sas_token"),
            "tenant_id": ("tenant_id", "azure_storage_tenant_id"),
            "client_id": ("client_id", "azure_storage_client_id"),
            "client_secret": ("client_secret", "azure_storage_client_secret"),
            _ENDPOINT: (_ENDPOINT, "azure_storage_endpoint"),
            _ANON: (_ANON, "azure_skip_signature"),
        },
        ("abfss", "az"),
    ),
)
_BY_SCHEME = {scheme: store for store in _STORES for scheme in (store.scheme, *store.aliases)}


def object_store_of(url: str) -> ObjectStore | None:
    """The store that a URL names by its scheme; None for a local path, HDFS or anything else."""
    scheme, colon, _ = url.partition("://")
    return _BY_SCHEME.get(scheme.lower()) if colon else None


class ObjectWriter(io.RawIOBase):
    """An object that is being uploaded. fsspec's own file would upload what it has after an error, too, and even when
    it is collected as garbage."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._failed = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def write(self, data: Any) -> int:
        try:
            with _object_store_errors():
                return int(self._file.write(data))
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        """Upload the rest; the object is there when this returns. After an error in `write`: discard."""
        if self.closed:
            return
        if self._failed:
            self.discard()
            return
        try:
            with _object_store_errors():
                self._file.close()
        except BaseException:
            self.discard()
            raise
        super().close()

    def discard(self) -> None:
        """Leave no object behind. Does nothing after `close`."""
        if self.closed:
            return
        with contextlib.suppress(Exception):  # a part that stays is invisible, and the store's own rules remove it
            self._file.discard()
        self._file.closed = True
        super().close()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()


class ObjectCalls:
    """A file system of fsspec whose methods fail with OSErrors, whatever library is behind it."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return _object_store_errors()(getattr(self._filesystem, name))


@contextlib.contextmanager
def _object_store_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        name = type(error).__name__
        of_adlfs = isinstance(error, RuntimeError) and "upload block" in str(error)
        if type(error).__module__.partition(".")[0] not in _LIBRARIES and not of_adlfs:
            raise
        text = f"{name}: {error}".partition("\n")[0]
        if re.search("Credential|Authentication|Auth", name):
            raise PermissionError(text) from error
        kind = ConnectionError if re.search("Connect|Timeout|Disconnect|ServiceRe", name) else OSError
        raise kind(text) from error


def http_status(error: BaseException) -> int | None:
    """The status that a store answered with, of an error of s3fs."""
    response = getattr(error.__cause__, "response", None)
    return response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(response, dict) else None
