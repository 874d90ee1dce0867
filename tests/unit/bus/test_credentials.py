from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nexofork.bus.credentials import Login, read_login
from nexofork.bus.failures import BusDenied

if TYPE_CHECKING:
    from pathlib import Path

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
PUBLIC = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
CREDS = f"""-----BEGIN NATS USER JWT-----
eyJ0eXAi.eyJqdGki.c2ln
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""


def test_without_a_key_we_are_local() -> None:
    """A server that asks for nothing gets nothing."""
    assert read_login(None, None) == Login(identity="local", options={})


@pytest.mark.parametrize("argument", ["creds", "nkey_seed"])
def test_a_seed_is_taken_wherever_it_is_given(tmp_path: Path, argument: str) -> None:
    """A file with a seed alone proves who we are."""
    path = tmp_path / "seed.nk"
    path.write_text(SEED + "\n")

    login = read_login(path, None) if argument == "creds" else read_login(None, path)

    assert login == Login(identity=PUBLIC, options={"nkeys_seed_str": SEED})


def test_a_credentials_file_holds_token_and_seed(tmp_path: Path) -> None:
    """The identity is the seed's; nats-py reads the token itself."""
    path = tmp_path / "user.creds"
    path.write_text(CREDS)

    assert read_login(path, None) == Login(identity=PUBLIC, options={"user_credentials": str(path)})


@pytest.mark.parametrize("text", ["", "nonsense", "SUNONSENSE", "SAAMLK2ZNL35", "é"])
def test_what_is_no_seed_is_refused(tmp_path: Path, text: str) -> None:
    """The file is named."""
    path = tmp_path / "bad.nk"
    path.write_text(text)

    with pytest.raises(BusDenied, match=r"bad\.nk"):
        read_login(None, path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """So is the reason."""
    with pytest.raises(BusDenied, match="No such file"):
        read_login(tmp_path / "absent", None)


def test_a_seed_does_not_show_in_the_error(tmp_path: Path) -> None:
    """A secret that cannot be used is still a secret."""
    path = tmp_path / "bad.nk"
    path.write_text(SEED[:30])

    with pytest.raises(BusDenied) as caught:
        read_login(None, path)

    assert SEED[:20] not in f"{caught.value} {caught.value.__cause__}"
