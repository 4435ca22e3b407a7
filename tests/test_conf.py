"""The configuration of a broker that is shipped, and the one that is printed: as the code declares them."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from broker.config.broker_config import BrokerConfig
from broker.settings import read_properties_file, settings_of
from broker.tools.broker import app
from broker.tools.run_broker import CONF

SHIPPED = CONF / "server.properties"


def test_the_printed_file_has_every_setting_with_its_default_or_what_is_shipped() -> None:
    printed = CliRunner().invoke(app, ["config"]).output
    lines = re.findall(r"^# (.+)\n#?([a-z0-9._]+)=(.*)$", printed, re.MULTILINE)
    keys, shipped = settings_of(BrokerConfig), read_properties_file(SHIPPED)
    assert lines == [(key.doc, name, shipped.get(name, key.format(key.default))) for name, key in keys.items()]
    assert re.findall(r"^([a-z0-9._]+)=", printed, re.MULTILINE) == [name for name in keys if name in shipped]


def test_the_shipped_file_explains_its_settings_as_the_code_does() -> None:
    keys = settings_of(BrokerConfig)
    lines = re.findall(r"^# (.+)\n([a-z.]+)=(.*)$", SHIPPED.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == [(keys[name].doc, name, text) for name, text in read_properties_file(SHIPPED).items()]


def test_server_properties_loads() -> None:
    config = BrokerConfig.load(SHIPPED)
    assert config.log_dirs == ("data/broker",)
    assert config.zookeeper_connect == ""
