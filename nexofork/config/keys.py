"""The settings there are. To add one, add a line here and use it by its path."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.config import kinds
from nexofork.tools.limits import half_of_memory
from nexofork.wire.subjects import DEFAULT_POOL
from nexofork.workspace.settings import default_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.config.kinds import Kind

__all__ = ["CLIENT_KEYS", "DAEMON_KEYS", "INLINE_SECRETS", "NATS_KEYS", "SANDBOX_KEYS", "Key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: where it is written, what it may be, and what it is unless said."""

    path: str
    """The section of the file and the name in it, as ``daemon.slots``."""
    kind: Kind
    help: str
    default: Any = None
    """The value unless said, or what returns it."""
    default_words: str = ""
    """What the default is, where its value differs from host to host."""
    flag: str = ""
    also: tuple[str, ...] = ()
    """Variables that are read after our own."""
    credential: str = ""
    """The systemd credential that stands in where nothing is said."""
    reloads: bool = False
    """Whether a running daemon takes a new value at SIGHUP."""

    @property
    def section(self) -> str:
        """Where in the file."""
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        """What it is called there."""
        return self.path.partition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"NEXOFORK_{self.section}_{self.name}".upper()

    def fallback(self) -> Any:
        """Return the value unless said."""
        default: Callable[[], Any] | Any = self.default
        return default() if callable(default) else default


NATS_KEYS = (
    Key(
        path="nats.url",
        kind=kinds.nats_urls(),
        flag="--nats",
        also=("NATS_URL",),
        default=("nats://127.0.0.1:4222",),
        help="Where NATS is; several with commas.",
    ),
    Key(path="nats.creds_file", kind=kinds.file(secret=True), flag="--creds", help="Credentials file of this role."),
    Key(
        path="nats.nkey_file",
        kind=kinds.file(secret=True),
        flag="--nkey",
        credential="nats_nkey",
        help="File with this role's nkey seed.",
    ),
    Key(
        path="nats.ca_file",
        kind=kinds.file(),
        flag="--nats-ca",
        also=("NATS_CA",),
        help="Certificate of the authority behind the server's; without it the system's are trusted.",
    ),
    Key(path="nats.pool", kind=kinds.token(), flag="--pool", default=DEFAULT_POOL, help="The pool of daemons."),
)
CLIENT_KEYS = NATS_KEYS
"""What commands and parents read."""

SANDBOX_KEYS = (
    Key(
        path="sandbox.kind",
        kind=kinds.one_of("auto", "bwrap", "none"),
        flag="--sandbox",
        default="auto",
        help="What commands run in; auto is bwrap where it works and an error where not, none is bare.",
    ),
    Key(
        path="sandbox.network",
        kind=kinds.yes_no(),
        flag="--sandbox-network",
        default=False,
        help="Whether commands may use this host's network.",
    ),
    Key(
        path="sandbox.read",
        kind=kinds.folders(),
        flag="--sandbox-read",
        default=(),
        help="A folder that commands may read beside the system's; may be given several times.",
    ),
    Key(
        path="sandbox.memory_mb",
        kind=kinds.whole(16),
        flag="--memory-mb",
        default=lambda: half_of_memory() // 1024**2,
        default_words="half of the host's",
        help="What a command may use, all its processes together.",
    ),
    Key(
        path="sandbox.disk_mb",
        kind=kinds.whole(1),
        flag="--disk-mb",
        default=4096,
        help="What a run may write to its folders.",
    ),
    Key(
        path="daemon.state_dir",
        kind=kinds.folder(),
        flag="--state-dir",
        default=default_state_dir,
        default_words="/var/lib/nexofork for root, else ~/.local/state/nexofork",
        help="Where runs get folders of their own.",
    ),
)
DAEMON_KEYS = (
    Key(
        path="daemon.slots",
        kind=kinds.whole(1, ceiling=100_000),
        flag="--slots",
        default=64,
        reloads=True,
        help="How many forks run at once.",
    ),
    Key(
        path="daemon.name",
        kind=kinds.text(),
        flag="--name",
        default=socket.gethostname,
        default_words="the host's",
        help="What this daemon calls itself.",
    ),
    Key(
        path="daemon.lease_s",
        kind=kinds.seconds(least=0.5, ceiling=86_400),
        flag="--lease-s",
        default=15.0,
        help="Silence before a takeover; unless given, a pool that is there keeps its own.",
    ),
    Key(
        path="daemon.drain_s",
        kind=kinds.seconds(zero=True),
        flag="--drain-s",
        default=60.0,
        reloads=True,
        help="Time to finish.",
    ),
    Key(
        path="daemon.leader_wait_s",
        kind=kinds.seconds(zero=True),
        flag="--leader-wait-s",
        default=30.0,
        help="Longest wait for a sibling that writes the common prefix.",
    ),
    Key(
        path="daemon.log_level",
        kind=kinds.one_of("debug", "info", "warning", "error"),
        flag="--log-level",
        default="info",
        reloads=True,
        help="The least that is logged.",
    ),
    Key(
        path="daemon.log_format",
        kind=kinds.one_of("auto", "text", "json"),
        flag="--log-format",
        default="auto",
        help="How it is logged to stderr; auto is the journal's own form under systemd, else text.",
    ),
    Key(
        path="daemon.allow_root",
        kind=kinds.yes_no(),
        flag="--allow-root",
        default=False,
        help="Let root's daemon run commands bare, as root (--sandbox none).",
    ),
    *SANDBOX_KEYS,
    Key(
        path="workspace.one_mb",
        kind=kinds.whole(1),
        flag="--workspace-mb",
        default=8192,
        help="The most one git workspace may take.",
    ),
    Key(
        path="workspace.all_mb",
        kind=kinds.whole(1),
        flag="--workspaces-mb",
        default=65536,
        help="The most all git workspaces may take.",
    ),
    Key(
        path="workspace.disk_floor_mb",
        kind=kinds.whole(0),
        flag="--disk-floor-mb",
        default=256,
        help="What has to stay free on the disk.",
    ),
    Key(
        path="tools.deadline_s",
        kind=kinds.seconds(),
        flag="--tool-deadline-s",
        default=300.0,
        help="Longest wait for a tool that the parent runs.",
    ),
    Key(
        path="tools.shared_dirs",
        kind=kinds.folders(),
        flag="--shared-dir",
        default=(),
        help="A folder that is the same one here and at the parents. Memory folders in it are used here, and a `path` "
        "workspace has to be in one; a link that leads out of it is not followed.",
    ),
    Key(
        path="tools.mcp_config",
        kind=kinds.file(),
        flag="--mcp-config",
        help='MCP servers to have tools of, as {"mcpServers": {…}} in JSON or TOML.',
    ),
    Key(
        path="provider.api_key_file",
        kind=kinds.file(secret=True),
        flag="--api-key-file",
        credential="anthropic_api_key",
        help="File with the provider's key; ANTHROPIC_API_KEY comes before one named in the settings file.",
    ),
    Key(
        path="provider.base_url",
        kind=kinds.http_url(),
        flag="--base-url",
        also=("ANTHROPIC_BASE_URL",),
        default_words="the provider's own",
        help="Where the provider's API is.",
    ),
    Key(
        path="telemetry.health_port",
        kind=kinds.whole(0, most=65535),
        flag="--health-port",
        help="Answer /metrics, /healthz and /readyz over HTTP there; 0 takes a free port. Off unless given.",
    ),
    Key(
        path="telemetry.health_host",
        kind=kinds.text(),
        flag="--health-host",
        default="127.0.0.1",
        help="The address for it; * is all of them.",
    ),
    *NATS_KEYS,
)
"""What a daemon reads, and whoever checks a host for it."""

INLINE_SECRETS = {
    "provider.api_key": "provider.api_key_file",
    "provider.auth_token": "provider.api_key_file",
    "provider.key": "provider.api_key_file",
    "nats.creds": "nats.creds_file",
    "nats.nkey": "nats.nkey_file",
    "nats.nkey_seed": "nats.nkey_file",
    "nats.seed": "nats.nkey_file",
    "nats.password": "nats.creds_file",
    "nats.token": "nats.creds_file",
}
"""What would hold a secret if it were a setting, with what names a file in its place."""
