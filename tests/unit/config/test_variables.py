"""Variables that look like ours and that nothing reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nexofork
from nexofork.config.keys import CLIENT_KEYS
from nexofork.config.settings import KNOWN_VARIABLES, Surroundings, read_settings, unread_variables
from nexofork.errors import BadSettings

_NAME = re.compile(r"\"(NEXOFORKD?_[A-Z_]+[A-Z])\"")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NEXOFORK_SLOTS", "NEXOFORK_DAEMON_SLOTS"),
        ("NEXOFORKD_SLOTS", "NEXOFORK_DAEMON_SLOTS"),
        ("NEXOFORKD_DAEMON_SLOTS", "NEXOFORK_DAEMON_SLOTS"),
        ("NEXOFORK_DEAMON_SLOTS", "NEXOFORK_DAEMON_SLOTS"),
        ("NEXOFORK_DAEMON_SLOT", "NEXOFORK_DAEMON_SLOTS"),
        ("NEXOFORK_PRICE", "NEXOFORK_PRICES"),
    ],
)
def test_a_mistyped_variable_is_told_with_the_right_name(name: str, meant: str) -> None:
    """Also where the section was left out, or the program's name has a letter too many."""
    assert list(unread_variables({name: "4"})) == [
        f"{name} is no setting of ours and is ignored. Did you mean {meant}?"
    ]


def test_it_is_told_beside_what_is_wrong(tmp_path: Path) -> None:
    """It may be the reason; a command that knows fewer settings says the same."""
    around = Surroundings(environment={"NEXOFORK_SLOTS": "4", "NEXOFORK_NATS_POOL": "a.b"})
    with pytest.raises(BadSettings) as caught:
        read_settings(CLIENT_KEYS, {}, around)

    assert [warning.split()[0] for warning in caught.value.warnings] == ["NEXOFORK_SLOTS"]


def test_what_an_orchestrator_makes_of_a_service_is_left_alone() -> None:
    """Kubernetes sets these in every pod of a namespace with a service called nexofork."""
    made = {
        "NEXOFORK_SERVICE_HOST": "10.0.0.7",
        "NEXOFORK_SERVICE_PORT_NATS": "4222",
        "NEXOFORK_PORT": "tcp://10.0.0.7:4222",
        "NEXOFORK_PORT_4222_TCP_ADDR": "10.0.0.7",
    }
    assert list(unread_variables(made)) == []


def test_every_variable_that_the_code_names_is_known() -> None:
    """A new one that is read somewhere is not called mistyped."""
    root = Path(nexofork.__file__).parents[1]
    files = [*(root / "nexofork").rglob("*.py"), *(root / "daemon").rglob("*.py")]
    named = {name for file in files for name in _NAME.findall(file.read_text())}

    assert len(named) > 5
    assert named <= KNOWN_VARIABLES
