"""The configuration files that are shipped: complete, loadable, and equal to what the code declares."""

from __future__ import annotations

from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.settings import read_properties_file, settings_of
from broker.tools.config_file import render_server_properties
from broker.tools.run_broker import CONF

SHIPPED = CONF / "server.properties"


def test_the_printed_server_properties_list_every_setting_with_its_default_and_meaning() -> None:
    text, shipped = render_server_properties(), read_properties_file(SHIPPED)
    for name, key in settings_of(BrokerConfig).items():
        value = f"{name}={shipped[name]}" if name in shipped else f"#{name}={key.format(key.default)}"
        assert f"# {key.doc}\n{value}\n" in text
    sections = [line for line in text.splitlines() if line.startswith("##")]
    assert len(sections) == len(set(sections)) == len({key.group for key in settings_of(BrokerConfig).values()})


def test_the_printed_server_properties_are_those_of_a_start_without_a_file(tmp_path: Path) -> None:
    printed = tmp_path / "server.properties"
    printed.write_text(render_server_properties(), encoding="utf-8")
    assert BrokerConfig.load(printed) == BrokerConfig.load(SHIPPED)


def test_server_properties_loads() -> None:
    config = BrokerConfig.load(SHIPPED)
    assert config.log_dirs == ("data/broker",)
    assert config.zookeeper_connect == ""
