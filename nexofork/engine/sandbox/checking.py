"""Try a sandbox out: run a command in it and see what it can see.

That the program is installed says little: a container, a hardened unit or a kernel setting may keep it from working,
or from keeping things apart.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nexofork.engine.sandbox.view import within
from nexofork.engine.tools.commands import Limits, Output, run_command
from nexofork.engine.tools.place import Place
from nexofork.errors import SandboxUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.engine.sandbox.bubblewrap import Bubblewrap

__all__ = ["check_sandbox"]

_LIMIT_S = 20.0
_FIX = (
    "Allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, "
    "user.max_user_namespaces; a container needs a seccomp profile that permits them), or run commands bare on this "
    "host with --sandbox none."
)
_REPLACE = (
    "Use another version of bubblewrap, run the daemon as a user without rights (User= in a systemd unit), or run "
    "commands bare on this host with --sandbox none."
)
_KINDS = ("user", "pid", "ipc", "uts", "mnt", "net")
_PROBE = r"""
for kind in user pid ipc uts mnt net; do echo "ns $kind $(readlink /proc/self/ns/$kind)"; done
echo "env $(compgen -e | tr '\n' ' ')"
for path in "$@"; do if [ -d "$path" ] || [ -s "$path" ]; then echo "seen $path"; fi; done
for path in /usr / /etc; do { echo x >"$path/nexofork-probe"; } 2>/dev/null && echo "wrote $path"; done
for path in /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness; do
    { value=$(<"$path") && echo "$value" >"$path"; } 2>/dev/null && echo "wrote $path"
done
for path in /proc/sysrq-trigger /proc/irq/default_smp_affinity /proc/mtrr /proc/self/oom_score_adj; do
    { : >>"$path"; } 2>/dev/null && echo "wrote $path"
done
for path in "$PWD" /tmp; do echo kept >"$path/written" && echo "kept $path"; done
"""
_ENVIRONMENT = {"PATH", "LANG", "HOME", "PWD", "SHLVL", "OLDPWD", "_"}
_HOME_ENTRIES = 50


async def check_sandbox(sandbox: Bubblewrap) -> None:
    """Return if a command inside has everything of its own and sees nothing of the daemon's.

    Raises:
        SandboxUnavailable: It could not be run, or sees or changes what it must not, or cannot do its work.
    """
    async with sandbox.open(Place(), name="check") as place:
        assert place.sandbox is not None
        assert place.cwd is not None
        output = Output(64 * 1024)
        try:
            ended = await run_command(
                ("/bin/bash", "-c", _PROBE, "bash", *_to_be_hidden(sandbox, place)),
                output=output,
                limits=Limits(time_s=_LIMIT_S),
                sandbox=place.sandbox,
            )
        except OSError as exc:
            raise SandboxUnavailable(f"bubblewrap could not be started ({exc})", fix=_FIX) from exc
        said = output.text().strip()
        if ended.killed is not None or f"kept {place.cwd}" not in said:
            why = ended.killed or said.rpartition("\n")[2] or f"bubblewrap ended with {ended.code}"
            raise SandboxUnavailable(f"a command could not be run in it ({why})", fix=_FIX)
        if problem := _problem(sandbox, place.cwd, said.splitlines()):
            raise SandboxUnavailable(problem, fix=_REPLACE)


def _problem(sandbox: Bubblewrap, cwd: Path, said: list[str]) -> str | None:
    apart = [kind for kind in _KINDS if not (kind == "net" and sandbox.network)]
    for kind in apart:
        if f"ns {kind} {os.readlink(f'/proc/self/ns/{kind}')}" in said:
            return f"a command in it shares the host's {kind} namespace"
    for line in said:
        if line.startswith("env ") and (more := set(line.split()[1:]) - _ENVIRONMENT):
            return f"a command in it sees {', '.join(sorted(more))} in its environment"
        if line.startswith("seen "):
            return f"a command in it can see {line.removeprefix('seen ')}"
        if line.startswith("wrote "):
            return f"a command in it can write to {line.removeprefix('wrote ')}"
    try:
        (cwd / "written").unlink()
    except OSError as exc:
        return f"what a command wrote cannot be removed ({exc.strerror})"
    return None


def _to_be_hidden(sandbox: Bubblewrap, place: Place) -> list[str]:
    """Things of the daemon's that are really there: its own files, its credentials, and some of its home."""
    assert place.sandbox is not None
    shown = [mount.inside for mount in place.sandbox.view.mounts]
    paths = [str(sandbox.folder / "lock"), str(sandbox.folder / "etc")]
    for hidden in sandbox.hidden:
        if os.path.isdir(hidden):
            paths += [entry.path for entry in os.scandir(hidden)][:_HOME_ENTRIES]
        else:
            paths.append(hidden)
    return [path for path in paths if not any(within(path, one) or within(one, path) for one in shown if one != "/")]
