"""The configuration files that are shipped: complete, loadable, and equal to what the code declares."""

from __future__ import annotations

from broker.config.broker_config import BrokerConfig
from tests.support import server_properties


def test_server_properties_lists_every_setting_with_its_default() -> None:
    text = server_properties.FILE.read_text(encoding="utf-8")
    assert text == server_properties.render(), "run: python -m tests.support.server_properties"


def test_server_properties_loads() -> None:
    config = BrokerConfig.load(server_properties.FILE)
    assert config.log_dirs == ("data/broker",)
    assert config.zookeeper_connect == ""
