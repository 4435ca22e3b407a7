"""Options of object stores for both libraries, and what a storage on S3 does: whole objects, conditions, errors."""

from __future__ import annotations

import gc
import secrets
from pathlib import Path
from typing import Any

import fsspec
import pytest

from broker.errors import ConfigError
from broker.storage import object_stores, storage
from broker.storage.object_stores import object_store_of
from broker.storage.storage import ObjectStorage, open_storage
from tests.support.fake_s3 import FakeS3, Fault

MIB = 1 << 20


@pytest.fixture
def place(s3: FakeS3) -> ObjectStorage:
    opened = open_storage("s3://lake/place", s3.options)
    assert isinstance(opened, ObjectStorage)
    return opened


@pytest.fixture(autouse=True)
def probe_again() -> None:
    storage._probed.clear()


class TestOptions:
    @pytest.mark.parametrize(
        ("url", "given", "of_fsspec", "of_object_store"),
        [
            (
                "s3://b/d",
                {"key": "k", "secret": "s", "token": "t", "region": "eu-1", "endpoint_url": "http://h:1"},
                {
                    "key": "k",
                    "secret": "s",
                    "token": "t",
                    "client_kwargs": {"region_name": "eu-1"},
                    "endpoint_url": "http://h:1",
                },
                {
                    "aws_access_key_id": "k",
                    "aws_secret_access_key": "s",
                    "aws_session_token": "t",
                    "aws_region": "eu-1",
                    "aws_endpoint": "http://h:1",
                    "allow_http": "true",
                    "aws_conditional_put": "etag",
                },
            ),
            (
                "s3://b/d",
                {"anon": "True"},
                {"anon": True},
                {"aws_skip_signature": "true", "aws_conditional_put": "etag"},
            ),
            ("gs://b/d", {"anon": "true"}, {"token": "anon"}, {"google_skip_signature": "true"}),
            ("gs://b/d", {"token": "/k.json"}, {"token": "/k.json"}, {"google_service_account": "/k.json"}),
            (
                "abfs://c/d",
                {"account_name": "n", "account_key": "k"},
                {"account_name": "n", "account_key": "k"},
                {"azure_storage_account_name": "n", "azure_storage_account_key": "k"},
            ),
        ],
    )
    def test_an_option_is_given_once_and_reaches_both_libraries(
        self,
        url: str,
        given: dict[str, str],
        of_fsspec: dict[str, Any],
        of_object_store: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        store = object_store_of(url)
        assert store is not None
        checked = store.checked(given)
        assert store.for_fsspec(checked) == {**of_fsspec, "use_listings_cache": False}
        assert store.for_object_store(checked) == of_object_store

    def test_region_and_endpoint_come_from_either_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        monkeypatch.setenv("AWS_REGION", "eu-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h:1")
        store = object_store_of("s3://b/d")
        assert store is not None
        assert store.checked({}) == {"region": "eu-1", "endpoint_url": "http://h:1"}
        assert store.checked({"region": "us-1"})["region"] == "us-1"

    @pytest.mark.parametrize(
        ("url", "options", "message"),
        [
            (
                "s3://b/d",
                {"secrets": "hush-hush"},
                "storage option secrets: s3:// takes key, secret, token, region, endp",
            ),
            ("s3://b/d", {"anon": "perhaps"}, "anon must be true or false"),
            ("s3://b/d", {"endpoint_url": "h:1"}, "endpoint_url must begin with http:// or https://"),
            ("s3:///d", {}, "'s3:///d' names no bucket: write s3://BUCKET/DIRECTORY"),
            ("abfs://c/d", {"endpoint_url": "http://h:1"}, "goes with account_name and account_key"),
        ],
    )
    def test_a_wrong_option_is_refused_without_its_value(self, url: str, options: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as raised:
            open_storage(url, options)
        assert "hush-hush" not in str(raised.value)

    def test_a_missing_library_is_named_with_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(object_stores, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"s3:// needs s3fs: pip install 'pykafka-spark\[s3\]'"):
            open_storage("s3a://b/d")

    def test_one_store_has_one_name(self, s3: FakeS3) -> None:
        assert open_storage("s3a://lake/d/", s3.options).url == "s3://lake/d"


class TestFiles:
    def test_a_file_is_created_listed_read_and_removed(self, place: ObjectStorage) -> None:
        place.create("a/b", b"content")
        place.create("a/c/d", b"x")
        assert (place.read("a/b"), place.exists("a"), place.names("a")) == (b"content", True, ["b", "c"])
        assert place.sizes("a") == {"b": 7, "c": None}
        place.remove("a")
        assert (place.names(""), place.exists("a")) == ([], False)
        place.remove("a")

    def test_what_another_process_writes_is_seen_at_once(self, place: ObjectStorage, s3: FakeS3) -> None:
        other = open_storage("s3://lake/place", s3.options)
        assert place.names("a") == []
        assert not place.exists("a/b")
        other.create("a/b", b"x")
        assert (place.names("a"), place.exists("a/b"), place.read("a/b")) == (["b"], True, b"x")

    def test_an_object_that_stands_for_a_directory_is_no_entry(self, place: ObjectStorage) -> None:
        place._fs.pipe_file("lake/place/d/", b"")
        place.create("d/x", b"x")
        assert place.names("d") == ["x"]

    def test_create_refuses_to_replace_a_file(self, place: ObjectStorage) -> None:
        place.create("file", b"first")
        with pytest.raises(FileExistsError):
            place.create("file", b"second")
        assert place.read("file") == b"first"

    @pytest.mark.parametrize("size", [10, 20 * MIB], ids=["one request", "in parts"])
    def test_an_output_appears_whole_at_its_close(self, place: ObjectStorage, s3: FakeS3, size: int) -> None:
        with place.open_output("big") as file:
            for _ in range(10):
                file.write(b"x" * (size // 10))
            assert s3.keys("lake/place") == []
            assert file.tell() == size
        assert place.sizes("") == {"big": size}
        assert s3.uploads() == 0

    @pytest.mark.parametrize("size", [10, 20 * MIB], ids=["one request", "in parts"])
    @pytest.mark.parametrize("end", ["error", "discard", "garbage"])
    def test_an_output_that_fails_leaves_nothing(self, place: ObjectStorage, s3: FakeS3, size: int, end: str) -> None:
        file = place.open_output("big")
        file.write(b"x" * size)
        if end == "error":
            with pytest.raises(ZeroDivisionError), file:
                raise ZeroDivisionError
        elif end == "discard":
            storage.discard_output(file)
        del file
        gc.collect()
        assert s3.keys("lake/place") == []
        assert s3.uploads() == 0

    def test_an_upload_that_the_store_refuses_leaves_nothing(self, place: ObjectStorage, s3: FakeS3) -> None:
        s3.fault("PUT", "partNumber=2", Fault.DENIED)
        file = place.open_output("big")
        file.write(b"x" * 9 * MIB)
        with pytest.raises(PermissionError):
            file.write(b"x" * 9 * MIB)
        file.close()
        s3.fault("PUT", "small", Fault.DENIED)
        file = place.open_output("small")
        file.write(b"x")
        with pytest.raises(PermissionError):
            file.close()
        del file
        gc.collect()
        assert (s3.keys("lake/place"), s3.uploads()) == ([], 0)

    def test_an_answer_that_is_lost_may_look_like_a_rival(self, place: ObjectStorage, s3: FakeS3) -> None:
        s3.fault("PUT", "/file", Fault.LOST_ANSWER)
        with pytest.raises(FileExistsError):
            place.create("file", b"mine")
        assert place.read("file") == b"mine"


class TestStoresOfOthers:
    """The same on emulators that others wrote."""

    @pytest.fixture(params=["abfs", "gs"])
    def there(self, request: pytest.FixtureRequest) -> ObjectStorage:
        fixture = {"abfs": "azure_options", "gs": "google_options"}[request.param]
        opened = open_storage(f"{request.param}://lake/{secrets.token_hex(4)}", request.getfixturevalue(fixture))
        assert isinstance(opened, ObjectStorage)
        return opened

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs within aiohttp
    def test_files_conditions_outputs_and_the_probe(self, there: ObjectStorage) -> None:
        there.probe()
        assert there.names("") == []
        there.create("a/b", b"first")
        with pytest.raises(FileExistsError):
            there.create("a/b", b"second")
        assert (there.read("a/b"), there.names("a"), there.exists("a/c")) == (b"first", ["b"], False)
        for size in (10, 10 * MIB):
            with there.open_output(f"big-{size}") as file:
                file.write(b"x" * size)
            half = there.open_output("half")
            half.write(b"x" * size)
            half.discard()
        assert there.sizes("") == {"a": None, "big-10": 10, f"big-{10 * MIB}": 10 * MIB}
        there.remove("a")
        assert there.names("a") == []
        there.remove("a")


class TestProbe:
    def test_a_store_that_obeys_is_asked_once_and_keeps_nothing(self, place: ObjectStorage, s3: FakeS3) -> None:
        place.probe()
        assert s3.keys() == []
        asked = len(s3.requests())
        open_storage("s3://lake/elsewhere", s3.options).probe()
        assert len(s3.requests()) == asked

    def test_a_store_that_overwrites_is_refused_and_keeps_nothing(self, place: ObjectStorage, s3: FakeS3) -> None:
        s3.reset(ignores_conditions=True)
        for _ in range(2):
            with pytest.raises(
                ConfigError, match=r"'s3://lake/place': this store ignores the condition of a conditional"
            ):
                place.probe()
        assert s3.keys() == []

    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR, Fault.ERROR_AFTER])
    def test_a_fault_does_not_change_the_judgement(self, place: ObjectStorage, s3: FakeS3, fault: Fault) -> None:
        s3.fault("PUT", "_probe", fault)
        place.probe()
        assert s3.keys() == []

    def test_a_store_that_may_not_be_written_to_says_so(self, place: ObjectStorage, s3: FakeS3) -> None:
        s3.fault("PUT", "_probe", Fault.DENIED)
        with pytest.raises(PermissionError):
            place.probe()

    def test_a_store_where_fsspec_looks_and_then_writes_is_refused(self) -> None:
        """Alone its second create would fail, as it should; but not against a rival."""
        with pytest.raises(ConfigError, match="it looks, then writes"):
            open_storage("webhdfs://127.0.0.1:1/archive").probe()

    def test_another_store_is_tried(self) -> None:
        place = open_storage("memory://probed/archive")
        place.probe()
        assert place.names("") == []

    def test_a_local_directory_needs_none(self, tmp_path: Path) -> None:
        open_storage(str(tmp_path)).probe()
        assert list(tmp_path.iterdir()) == []


class TestErrors:
    def test_a_missing_bucket_is_an_os_error(self, s3: FakeS3) -> None:
        with pytest.raises(OSError, match="NoSuchBucket"):
            open_storage("s3://missing/d", s3.options).create("x", b"")

    def test_missing_credentials_are_a_permission_error(self, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of tests that had credentials
        place = open_storage("s3://lake/d", {"endpoint_url": s3.url, "region": "us-east-1"})
        with pytest.raises(PermissionError, match="NoCredentialsError"):
            place.create("x", b"")
