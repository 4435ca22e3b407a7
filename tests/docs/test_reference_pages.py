"""The generated parts of the documentation say what the code says."""

from __future__ import annotations

import re

import pytest

from broker.config.broker_config import BrokerConfig
from broker.settings import read_properties_file, settings_of
from broker.tools.run_broker import CONF
from tests.support.reference_pages import BLOCK, PAGES, TABLES, names, regenerate

WRITTEN = {match["name"]: match[0] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}


def test_every_generated_part_has_its_place() -> None:
    placed = [name for page in PAGES for name in names(page.read_text(encoding="utf-8"))]
    assert sorted(placed) == sorted(TABLES)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_what_is_written_equals_the_code(name: str) -> None:
    assert regenerate(WRITTEN[name]) == WRITTEN[name], "run `make reference`"


def test_the_broker_settings_tell_what_the_shipped_file_sets() -> None:
    told = dict(re.findall(r"\n\| `([a-z.]+)` \|[^|]*shipped file: `([^`]*)` \|", WRITTEN["broker-settings"]))
    shipped, keys = read_properties_file(CONF / "server.properties"), settings_of(BrokerConfig)
    assert told == {name: text for name, text in shipped.items() if text != keys[name].format(keys[name].default)}
    assert told["embedded.zookeeper.port"] == "2181"


def test_a_place_for_no_table_says_what_to_do() -> None:
    with pytest.raises(LookupError, match="no table nothing: correct the comment on the page, or add it to TABLES"):
        regenerate("<!-- table: nothing -->\n\n| stale |\n<!-- end of table -->")


def test_a_table_that_differs_is_seen() -> None:
    stale = "<!-- table: options -->\n\n| stale |\n<!-- end of table -->"
    assert regenerate(stale) != stale
