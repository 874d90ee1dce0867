"""Which MCP servers there are is read from a file, and what is wrong with it is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.errors import ForkRefused
from nexofork.tools.mcp_config import ServerSpec, read_mcp_config

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, servers: Any) -> Path:
    """A configuration with these servers."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_the_common_shape_is_read(tmp_path: Path) -> None:
    """Programs and addresses; a file is named from where the configuration stands, and read when it is needed."""
    (tmp_path / "token").write_text("s3cret\n")
    servers = {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"MODE": "ro", "API_KEY": {"file": "token"}}},
        "search": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": {"file": "token"}}},
    }
    files, search = read_mcp_config(written(tmp_path, servers))

    assert files == ServerSpec(
        name="files", command="npx", args=("-y", "x"), values={"MODE": "ro", "API_KEY": tmp_path / "token"}
    )
    assert files.resolved() == {"MODE": "ro", "API_KEY": "s3cret"}
    assert (search.url, search.resolved()) == ("https://example.org/mcp", {"Authorization": "s3cret"})


def test_toml_says_the_same(tmp_path: Path) -> None:
    """For operators who write the rest of their configuration in it."""
    path = tmp_path / "mcp.toml"
    path.write_text('[mcpServers.files]\ncommand = "npx"\nargs = ["x"]\n')

    assert read_mcp_config(path) == [ServerSpec(name="files", command="npx", args=("x",))]


@pytest.mark.parametrize("name", ["TOKEN", "GITHUB_TOKEN", "api_key", "SECRET_ID", "DB_PASSWORD", "AWS_ACCESS_KEY_ID"])
def test_a_secret_in_the_file_itself_is_refused(tmp_path: Path, name: str) -> None:
    """The message says how to give it, and does not show it."""
    path = written(tmp_path, {"s": {"command": "x", "env": {name: "hunter2"}}})

    with pytest.raises(ForkRefused, match=r'looks like a secret.*"file": PATH') as refused:
        read_mcp_config(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("x", "is no object"),
        ({}, "either a `command` or a `url`"),
        ({"command": "x", "url": "http://x"}, "either a `command` or a `url`"),
        ({"command": 7}, "either a `command` or a `url`"),
        ({"url": "ftp://x"}, "one of http or https"),
        ({"url": "http://x", "type": "sse"}, "the type 'sse'"),
        ({"command": "x", "args": "y"}, "`args` as a list of strings"),
        ({"command": "x", "env": {"A": 7}}, "needs A as a string"),
        ({"command": "x", "env": []}, "as an object"),
        ({"command": "x", "headers": {}}, "the other kind of server"),
        ({"command": "x", "cwd": 1}, "`cwd` as a string"),
        ({"command": "x", "disabled": True}, "disabled, which is not known"),
    ],
)
def test_a_server_that_cannot_be_meant_is_refused(tmp_path: Path, server: Any, words: str) -> None:
    """By its name, with what is wrong."""
    with pytest.raises(ForkRefused, match=words) as refused:
        read_mcp_config(written(tmp_path, {"s": server}))
    assert "'s'" in str(refused.value)


@pytest.mark.parametrize("name", ["", "a__b", "a b", "_a", "a_"])
def test_a_name_that_tools_could_not_carry_is_refused(tmp_path: Path, name: str) -> None:
    """Two underscores part a server's name from its tool's."""
    with pytest.raises(ForkRefused, match="needs a name of"):
        read_mcp_config(written(tmp_path, {name: {"command": "x"}}))


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not JSON"), ("[]", 'no "mcpServers"'), ("{}", 'no "mcpServers"')]
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Also one that is not there, and TOML that is none."""
    path = tmp_path / "mcp.json"
    with pytest.raises(ForkRefused, match="cannot be read: No such file"):
        read_mcp_config(path)
    path.write_text(text)
    with pytest.raises(ForkRefused, match=words):
        read_mcp_config(path)
    (tmp_path / "mcp.toml").write_text("x")
    with pytest.raises(ForkRefused, match="is not TOML"):
        read_mcp_config(tmp_path / "mcp.toml")
