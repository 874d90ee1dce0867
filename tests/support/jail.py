"""A jail that runs shell commands with the real bash and tells what each of them changed.

The jail has its own mounts, processes and host name, and no network. One process in it runs the commands of a batch,
one bash each, and compares after each: every file below the working folder and the home (inode, mode, size, time of
change), the names in ``/tmp``, processes that are left, the host name, and the variables, functions, aliases, options
and traps of the shell itself. The first difference is a violation; the folders are then made anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.policy.shell import READ_ONLY_ENVIRONMENT
from tests.support.sandboxes import BWRAP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Violation", "run_jailed"]

_DRIVER = r"""
import json, os, re, shutil, signal, socket, subprocess, time

WORK, HOME = "/tmp/work", "/tmp/home"
PROBE = "".join(f"\nbuiltin {what} >&9" for what in ("set", "declare -F", "alias", "shopt -p", "trap -p", "umask"))
VOLATILE = ("BASH", "EPOCH", "RANDOM", "SRANDOM", "SECONDS", "LINENO", "PIPESTATUS", "_=", "PWD", "OLDPWD", "PPID",
            "FUNCNAME", "DIRSTACK")
REFUSED = (b"Read-only file system", b"Operation not permitted", b"cannot set date")
TASK = json.load(open("/task/task.json"))

def fresh():
    for folder in (WORK, HOME):
        shutil.rmtree(folder, ignore_errors=True)
    for name in os.listdir("/tmp"):
        path = os.path.join("/tmp", name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    socket.sethostname("jail")
    shutil.copytree("/template/work", WORK, symlinks=True)
    shutil.copytree("/template/home", HOME, symlinks=True)
    time.sleep(0.02)  # so that a later change cannot have the same time as the copy
    return files()

def files():
    found = {"/tmp": sorted(os.listdir("/tmp"))}
    todo = [WORK, HOME]
    while todo:
        folder = todo.pop()
        try:
            entries = list(os.scandir(folder))
            at = os.lstat(folder)
        except OSError:
            continue
        found[folder] = (at.st_ino, at.st_mode, at.st_ctime_ns)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            else:
                at = entry.stat(follow_symlinks=False)
                found[entry.path] = (at.st_ino, at.st_mode, at.st_size, at.st_ctime_ns)
    return found

def processes():
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}

def left_over():
    deadline = time.monotonic() + 2
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.002)
    for one in left:
        try:
            os.kill(one, signal.SIGKILL)
        except OSError:
            pass
    return left

def state(raw):
    lines = raw.decode("utf-8", "replace").splitlines()
    return [line for line in lines if not line.startswith(VOLATILE)]

def run(command):
    reading, writing = os.pipe()
    os.dup2(writing, 9)
    os.close(writing)
    told = os.memfd_create("stderr")
    process = subprocess.Popen(
        ["/bin/bash", "-c", command + PROBE], cwd=WORK, env=TASK["environment"], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=told, pass_fds=(9,), start_new_session=True)
    os.close(9)
    timed_out = False
    try:
        process.wait(TASK["patience"])
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    err = os.pread(told, 100_000, 0)
    os.close(told)
    os.set_blocking(reading, False)
    said = b""
    try:
        while chunk := os.read(reading, 65536):
            said += chunk
    except BlockingIOError:
        pass
    os.close(reading)
    return err, state(said), timed_out

before = fresh()
_, usual, _ = run("true")
for number, command in enumerate(TASK["commands"]):
    err, shell, timed_out = run(command)
    problems = []
    after = files()
    if after != before:
        changed = sorted(path for path in {*after, *before} if after.get(path) != before.get(path))
        problems.append("changed " + ", ".join(changed[:6]))
    if left := left_over():
        problems.append(f"left {len(left)} processes")
    if os.uname().nodename != "jail":
        problems.append("set the host name")
    if timed_out:
        pass  # its shell was ended, so it cannot tell
    elif not shell:
        problems.append("ended the shell: " + err.decode("utf-8", "replace")[-200:])
    elif shell != usual:
        problems.append("changed the shell: " + ", ".join(sorted({*shell} ^ {*usual})[:4]))
    problems += ["tried: " + text.decode() for text in REFUSED if text in err and text.decode() not in command]
    lost = re.findall(r"([\w.-]+): command not found", err.decode("utf-8", "replace"))
    if any(shutil.which(name, path=TASK["environment"]["PATH"]) for name in lost):
        problems.append("lost its search path")
    print(json.dumps([number, problems]), flush=True)
    if problems:
        before = fresh()
"""
_FILES = {
    "a.txt": "x: 1\na1 b\ny\nx\nlast\n",
    "b.txt": "a\nb\n",
    "a b.txt": "spaced\n",
    "a.json": '{"a": {"b": 1}}\n',
    "src/one.py": "def one():\n    return 1\n",
    "b,e;s,x,y/in.txt": "a folder with the name of a script\n",
    **dict.fromkeys(("-o", "-delete", "--output=w", "-exec", "-v", "--pre=evil", "--compress-program=evil"), "flag\n"),
    **dict.fromkeys((f"{flag}s,.*,touch executed,e;s,x,x," for flag in ("--expression=", "-e=;")), "script\n"),
    "evil.awk": 'BEGIN { system("touch /tmp/work/executed") }\n',
    "w.sed": "w written\n",
}
_EVIL = "#!/bin/sh\n/usr/bin/touch /tmp/work/executed\n"
_EVIL_NAMES = ("evil", "ls", "cat", "true", "git", "touch")
"""Also the names of programs, for a search path that begins in the working folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A command that did more than read."""

    command: str
    what: str


def run_jailed(commands: Sequence[str], folder: Path, *, patience_s: float = 5.0) -> list[Violation]:
    """Run commands one by one in a jail and return those that changed something.

    Args:
        commands: What to run, as ``bash -c`` gets it.
        folder: An empty folder of the test, for what the jail is made of.
        patience_s: When a command is ended that does not end by itself.
    """
    assert BWRAP is not None
    work, home, task = (folder / name for name in ("work", "home", "task"))
    _fill(work, home)
    task.mkdir()
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/home", "LANG": "C.UTF-8"}
    environment |= READ_ONLY_ENVIRONMENT
    asked = {"commands": list(commands), "environment": environment, "patience": patience_s}
    (task / "task.json").write_text(json.dumps(asked))
    python = os.path.realpath(sys.executable)
    shown = ["/usr", "/etc", *([] if sys.base_prefix == "/usr" else [sys.base_prefix])]
    done = subprocess.run(
        [
            *(BWRAP, "--unshare-all", "--die-with-parent", "--new-session", "--hostname", "jail"),
            *[part for path in shown for part in ("--ro-bind", path, path)],
            *[part for name in ("bin", "sbin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")],
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *("--ro-bind", str(folder), "/template", "--ro-bind", str(task), "/task"),
            *(python, "-I", "-S", "-c", _DRIVER),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = [Violation(command=commands[number], what="; ".join(what)) for number, what in told if what]
    if len(told) < len(commands):  # the process that runs them is gone
        found.append(Violation(command=commands[len(told)], what=f"ended the jail: {done.stderr[-500:]}"))
    return found


def _fill(work: Path, home: Path) -> None:
    for name, text in _FILES.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in _EVIL_NAMES:
        (work / name).write_text(_EVIL)
        (work / name).chmod(0o755)
    home.mkdir()
    (home / "notes.txt").write_text("home\n")
    subprocess.run(["tar", "-cf", "a.tar", "a.txt", "b.txt"], cwd=work, check=True)
    subprocess.run(["tar", "-czf", "a.tgz", "a.txt", "b.txt"], cwd=work, check=True)
    quiet = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main")
    for arguments in (("init", "-q", "--template="), ("add", "."), ("commit", "-q", "-m", "one"), ("tag", "v1")):
        subprocess.run([*git, *arguments], cwd=work, check=True, env=quiet)
    (work / "a.txt").write_text(_FILES["a.txt"] + "changed\n")
    subprocess.run([*git, "stash", "-q"], cwd=work, check=True, env=quiet)
    (work / "b.txt").write_text("a\nb\ndirty\n")
    evil = "/tmp/work/evil"
    (home / ".gitconfig").write_text(
        f"[diff]\nexternal = {evil}\n[core]\nfsmonitor = {evil}\npager = {evil}\n[alias]\nlg = !{evil}\n"
    )
