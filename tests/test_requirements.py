"""A system package that cannot be had: a skip that says so, a failure where nothing may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy

from tests.support import postgres
from tests.support.debian_packages import unpack
from tests.support.requirements import Unavailable, give_up


def test_it_is_a_skip_on_a_users_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="kcat: no network"):
        give_up("kcat: no network")


def test_it_is_a_failure_in_continuous_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="kcat: no network"):
        give_up("kcat: no network")


def test_a_machine_without_apt_is_told_and_nothing_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get"):
        unpack(["kcat"], tmp_path / "kcat")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_postgresql_is_fetched_where_none_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres, "_MACHINE", tmp_path)
    try:
        server = postgres.Postgres()
    except Unavailable as error:
        give_up(str(error))
    try:
        engine = sqlalchemy.create_engine(server.start())
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT 1")).scalar_one() == 1
        engine.dispose()
    finally:
        server.stop()
