"""The image's build steps work, one by one, without an engine to run them in."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

import nexofork
from tests.ops.chart import ROOT, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ops, pytest.mark.timeout(900)]

_CONTAINERFILE = (ROOT / "Containerfile").read_text()


def build_stage() -> list[tuple[str, str]]:
    """The instructions of the first stage, continued lines joined."""
    stage = _CONTAINERFILE.split("\nFROM ")[1].replace("\\\n", " ")
    lines = [line for line in stage.splitlines()[1:] if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def locked(lock: str) -> list[str]:
    """The versions in a lock, without hashes and markers."""
    lines = (ROOT / "deploy" / f"{lock}.lock").read_text().splitlines()
    return [re.split(r" [;\\]", line)[0] for line in lines if not line.startswith(" ")]


class Stage:
    """A folder in which the instructions of a stage are carried out as the engine would, without the isolation."""

    def __init__(self, folder: Path, context: Path) -> None:
        self.folder = folder
        self._context = context
        self._work = folder / "src"
        self._work.mkdir()

    def here(self, text: str) -> str:
        """The text with the image's folders put into this one."""
        return re.sub(r"(?<![\w./*])/(opt|dist|wheels)\b", rf"{self.folder}/\1", text)

    def do(self, word: str, rest: str) -> None:
        """Carry out one instruction."""
        match word:
            case "COPY":
                self._copy(shlex.split(rest))
            case "RUN":
                words = ["bash", "-euc", self.here(rest)]
                done = subprocess.run(words, cwd=self._work, capture_output=True, text=True, timeout=800, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            case "WORKDIR" | "ENV":
                pass
            case _:
                raise AssertionError(f"{word} is new here: say what it does")

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        for source in sources:
            found = self._context / source
            goal = self._work / target / found.name if target.endswith("/") else self._work / target
            goal.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, goal, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, goal)


def test_the_build_stage_makes_what_the_image_runs(tmp_path: Path) -> None:
    """Its instructions, run as they stand, give an environment whose programs start, with the locked versions alone."""
    stage = Stage(tmp_path, ROOT)
    for word, rest in build_stage():
        stage.do(word, rest)
    home = tmp_path / "opt" / "nexofork" / "bin"

    for program in ("nexoforkd", "nexofork"):
        said = subprocess.run([home / program, "--version"], capture_output=True, text=True, timeout=30, check=True)
        assert nexofork.__version__ in said.stdout
    pip = [str(home / "pip"), "list", "--format=freeze", "--exclude=nexofork", "--exclude=pip", "--exclude=setuptools"]
    listed = subprocess.run(pip, capture_output=True, text=True, timeout=30, check=True).stdout
    assert set(listed.lower().replace("_", "-").splitlines()) == set(locked("requirements"))


def test_a_file_that_is_not_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    """The build ends where a library, or what builds one, has another hash than the lock."""
    for lock in ("requirements", "build"):
        context = shutil.copytree(ROOT / "deploy", tmp_path / lock / "context" / "deploy").parent
        changed = re.sub(
            r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, (context / "deploy" / f"{lock}.lock").read_text()
        )
        (context / "deploy" / f"{lock}.lock").write_text(changed)
        stage = Stage(tmp_path / lock, context)
        *before, install = build_stage()[:4]
        for word, rest in before:
            stage.do(word, rest)
        with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
            stage.do(*install)


def test_every_locked_file_has_a_hash_and_no_place() -> None:
    """A lock is versions and the hashes of their files: no registry is named, and nothing is installed unchecked."""
    for lock in ("requirements", "build"):
        text = (ROOT / "deploy" / f"{lock}.lock").read_text()
        entry = r"[\w.-]+==[^\s;]+(?: ; [^\\\n]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
        assert re.fullmatch(f"(?:{entry})+", text)
    installs = [one for _, rest in build_stage() for one in rest.split("&&") if re.search(r"pip (install|wheel)", one)]
    for install in installs:
        ours = install.rstrip().endswith(" .") and "--no-build-isolation" in install
        assert "--no-deps" in install
        assert "--require-hashes" in install or "--no-index" in install or ours


def test_the_lock_names_every_dependency_once() -> None:
    """What pyproject.toml asks for is in the lock, each at one version."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split(r"[\[<>=;! ]", one)[0] for one in wanted]
    found = [line.partition("==")[0] for line in locked("requirements")]

    assert set(names) <= set(found)
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[\w.-]+==\S+", line) for line in locked("requirements"))


def test_a_linter_finds_nothing_in_the_containerfile() -> None:
    """Hadolint is content, and the image does not run as root."""
    done = subprocess.run(
        [tool("hadolint"), str(ROOT / "Containerfile")], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 0, done.stdout
    assert re.findall(r"^USER (.+)$", _CONTAINERFILE, re.MULTILINE) == ["10001:10001"]


def test_the_image_has_every_program_that_is_called() -> None:
    """What the entry point, the health check and the tools start is installed or copied into the last stage."""
    last = _CONTAINERFILE.split("\nFROM ")[-1]

    for package in ("bubblewrap", "git", "ripgrep", "tini", "ca-certificates"):
        assert re.search(rf"apt-get install .*\b{package}\b", last)
    assert 'ENTRYPOINT ["tini", "--", "nexoforkd"]' in last
    assert 'CMD ["nexofork-present"]' in last
    assert "COPY deploy/nexofork-present /usr/local/bin/nexofork-present" in last
    assert (ROOT / "deploy" / "nexofork-present").stat().st_mode & 0o111


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    """Everything is left out but what the instructions copy, so no key that lies about gets into an image."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:].strip("/") for line in lines if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", _CONTAINERFILE, re.MULTILINE)
    copied = {source.split("/")[0] for sources in copies for source in sources.split()}

    assert "*" in lines
    assert allowed == copied
