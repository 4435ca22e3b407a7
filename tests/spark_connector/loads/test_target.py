"""The target of a load: what names a database, what is never shown of it, which columns may become directories."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.loads.addresses import DatabaseAddress, is_database_url, storage_options_for
from spark_connector.loads.path_values import check_topics, values_in_path
from spark_connector.loads.request import Target


def test_the_table_stands_behind_the_url_or_apart() -> None:
    url = "postgresql+psycopg://u@h:1/db"
    assert DatabaseAddress.parse(f"{url}#t", None) == DatabaseAddress.parse(url, "t") == DatabaseAddress(url, "t")
    assert DatabaseAddress.parse(f"{url}#s.t", None) == DatabaseAddress(url, "t", "s")
    assert DatabaseAddress.parse(f"{url}#s.t", "s.t").shown == f"{url}#s.t"


def test_a_sqlite_file_is_named_by_its_full_path() -> None:
    assert DatabaseAddress.parse("sqlite:///x.db", "t").url == f"sqlite:///{os.getcwd()}/x.db"
    assert DatabaseAddress.parse("sqlite:////a/x.db?mode=rw#t", None).url == "sqlite:////a/x.db?mode=rw"


@given(st.text(st.characters(codec="ascii", exclude_characters="/?&", categories=("L", "N", "P", "S")), min_size=8))
def test_a_password_is_never_shown(password: str) -> None:
    password = f"<{password}>"
    for to in (f"postgresql://u:{password}@h/db", f"postgresql://h/db?password={password.replace('#', '')}"):
        secret = to.partition("u:")[2].partition("@h/db")[0] or password.replace("#", "")
        target = Target(f"{to}#t", "g")
        assert secret not in repr(target)
        said = []
        try:
            address = DatabaseAddress.parse(f"{to}#t", None)
            said = [address.shown, repr(address)]
        except ConfigError as error:
            said = [str(error)]
        assert all(secret not in text for text in said)


@pytest.mark.parametrize(
    "to",
    ["sqlite://", "sqlite:///:memory:", "postgresql://h/db", "postgresql://h/db#a;b", "/data", "postgresql://h/db#"],
)
def test_what_is_no_table_is_refused(to: str) -> None:
    with pytest.raises(ConfigError):
        DatabaseAddress.parse(to, None if "#" in to or "sqlite" not in to else "t")


def test_a_name_that_would_be_another_in_a_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="'old#rows' cannot be the name of a table"):
        DatabaseAddress.parse("postgresql://h/db", "old#rows")


@pytest.mark.parametrize(
    ("to", "expected"), [("sqlite:///x", True), ("mysql+pymysql://h/x", True), ("hdfs://h/x", False), ("/data", False)]
)
def test_a_database_is_told_from_a_directory(to: str, expected: bool) -> None:
    assert is_database_url(to) is expected


@pytest.mark.parametrize("to", ["data/flights", "/data/flights", "file:///data/flights"])
def test_storage_options_of_a_local_directory_are_refused(to: str) -> None:
    with pytest.raises(ConfigError, match="is a local directory, which takes none"):
        storage_options_for(to, {"key": "hush"}, {"dfs.replication": "1"})
    assert storage_options_for(to, {}, {"dfs.replication": "1"}) == {}


def test_hadoop_settings_are_for_hdfs_alone() -> None:
    hadoop = {"a": "1", "b": "2"}
    assert storage_options_for("hdfs://h:1/x", {"b": "3"}, hadoop) == {"a": "1", "b": "3"}
    assert storage_options_for("s3://b/x", {"key": "k"}, hadoop) == {"key": "k"}


def test_format_and_offsets_follow_the_target(tmp_path: object) -> None:
    told = {to: Target(to, "g").check() for to in ("/data", "sqlite:///x.db#t")}
    assert [(target.format, target.offsets) for target in told.values()] == [("parquet", "files"), ("sql", "table")]
    assert Target("/data", "g", format="delta").check().offsets == "table"
    assert Target("odd+driver://h/db", "g", table="t").check().format == "sql"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:top?secret@h/db",
        "postgresql://u:top/secret@h/db",
        "postgresql://user@server:topsecret@h/db?x=y@z",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dsecret",
        "oracle+oracledb://u@h/db?wallet_password=secret",
    ],
)
def test_what_sqlalchemy_takes_for_a_password_is_not_shown(url: str) -> None:
    address = DatabaseAddress.parse(f"{url}#t", None)
    assert "secret" not in address.shown
    assert address.shown.endswith("#t")


NAMES_OF_NUMBERS = "2024 007 -5 1.5 .5 5. 1e5 2d 3F NaN Infinity 0x1p3 2024-01-31 -2024-01-31".split()
NAMES_OF_TEXT = "flights t7 7t 2024-q1 1_000 1.2.3 v1.5 nan1 2024-01-31-late e5 - .. -_- 0x1f true null".split()


@pytest.mark.parametrize("topic", [*NAMES_OF_NUMBERS, "__HIVE_DEFAULT_PARTITION__"])
def test_a_topic_that_spark_would_not_read_back_as_text_is_no_directory(topic: str) -> None:
    with pytest.raises(ConfigError, match=f"topic '{topic}' cannot be a directory of files"):
        check_topics(["date", "topic"], ["flights", topic])
    check_topics(["date"], [topic])


def test_a_topic_whose_directory_spark_passes_over_is_refused() -> None:
    with pytest.raises(ConfigError, match="names that end in ._COPYING_"):
        check_topics(["topic"], ["a._COPYING_"])


def test_any_other_topic_is_a_directory() -> None:
    check_topics(["topic"], NAMES_OF_TEXT)


def test_a_path_tells_its_columns() -> None:
    assert values_in_path("date=2026-11-21/topic=a%3Db/part-0") == {"date": "2026-11-21", "topic": "a=b"}
    assert values_in_path("hour=__HIVE_DEFAULT_PARTITION__/part=0") == {"hour": None}
    assert values_in_path("part-0") == {}
