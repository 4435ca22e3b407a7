"""What is secret in a URL is not shown, and what is not stays."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from broker.storage.storage import open_storage
from broker.storage.url_secrets import text_without_secrets, without_secrets
from spark_connector.destinations import open_destination
from spark_connector.formats.schema_text import read_schema
from spark_connector.formats.value_format import SchemaFile
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.record import LoadInterrupted
from spark_connector.loads.request import Target

SECRET = "Zm9v%2FYmFy%3D"
WITH_A_SECRET = [
    f"https://acct.blob.core.windows.net/c/s.avsc?sp=r&sv=2024-01-01&sig={SECRET}&se=2030",
    f"abfss://container@acct.dfs.core.windows.net/path?sig={SECRET}",
    f"wasbs://container@acct/path?SIG={SECRET}",
    f"s3://bucket/path?X-Amz-Signature={SECRET}",
    f"s3://bucket/path?X-Amz-Credential={SECRET}",
    f"s3://bucket/path?X-Amz-Security-Token={SECRET}",
    f"https://bucket.s3.amazonaws.com/x?AWSAccessKeyId=AKIA&Signature={SECRET}",
    f"https://storage.googleapis.com/b/o?X-Goog-Signature={SECRET}",
    f"https://storage.googleapis.com/b/o?X-Goog-Credential={SECRET}",
    f"https://host/path?access_token={SECRET}",
    f"https://host/path#access_token={SECRET}",
    f"https://host/path?api_key={SECRET}",
    f"https://host/path?apikey={SECRET}",
    f"https://host/path?x=1&token={SECRET}",
    f"https://user:{SECRET}@host/path",
    f"https://{SECRET}@host/path",
    f"sftp://user:{SECRET}@host/path",
    f"postgresql://user:8020/{SECRET}@host/db",
    f"hdfs://user:{SECRET}@host:8020/path",
    f"postgresql://user:{SECRET}@host/db?password={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={SECRET};EndpointSuffix=core.windows.net",
    f"BlobEndpoint=https://acct/;SharedAccessSignature=sv=1&sig={SECRET}",
    f"jdbc:sqlserver://host:1433;user=u;password={SECRET};encrypt=true",
]
WITHOUT = [
    "https://host:8081/subjects/x/versions/1?deleted=true&signal=1",
    "abfss://container@account.dfs.core.windows.net/path",
    "s3://bucket/key=1/code=2?region=eu&versionId=3",
    "hdfs://namenode:8020/path",
    "hdfs://namenode:8020/path/a@b",
    "hdfs://namenode:8020/secrets/day=5",
    "hdfs://namenode:8020/path/a?key=5;token=6",
    "s3://bucket/secrets/day=5",
    "memory://tokens/load=5",
    "https://host:8081/a@b",
    "file:///tmp/a=b;c",
    "file:///tmp/a;password=b",
    "/plain/path",
    "/plain/path;token=1",
    "postgresql://user@host/db?sslmode=require",
]


@pytest.mark.parametrize("url", WITH_A_SECRET)
def test_a_secret_is_hidden(url: str) -> None:
    shown = without_secrets(url)
    assert SECRET not in shown
    assert "***" in shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize("url", WITHOUT)
def test_what_is_not_secret_stays(url: str) -> None:
    assert without_secrets(url) == url
    assert text_without_secrets(f"cannot open '{url}': no") == f"cannot open '{url}': no"


@pytest.mark.parametrize("url", [url for url in WITH_A_SECRET if "://" in url and ";" not in url])
def test_a_secret_in_a_message_is_hidden(url: str) -> None:
    assert SECRET not in text_without_secrets(f"cannot open '{url}': nobody answers at {url} (a@b)")


def test_where_else_a_url_is_told() -> None:
    query = f"?sig={SECRET}"
    with pytest.raises(ConfigError) as refused:
        open_storage(f"no-such-scheme://host/path{query}")
    assert SECRET not in str(refused.value)
    assert SECRET not in open_storage(f"memory://host/path{query}").shown
    assert SECRET not in DatabaseAddress.parse(f"postgresql://u@h/d{query}#t", None).shown
    with pytest.raises(ConfigError) as refused:
        read_schema(SchemaFile(f"http://127.0.0.1:1/s.avsc{query}"), avro=True, registry=None)
    assert SECRET not in str(refused.value)
    assert "s.avsc?sig=***" in str(refused.value)
    target = Target(f"hdfs://u:{SECRET}@127.0.0.1:1/x", "g")
    with (
        pytest.raises(LoadInterrupted, match="nothing answers at 127.0.0.1:1, ") as unreachable,
        open_destination(target),
    ):
        pass
    assert SECRET not in str(unreachable.value)
