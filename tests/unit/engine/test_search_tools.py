"""Glob and Grep: what is found, in which order, and what happens when there is too much of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.tools.process import Limits
from nexofork.tools.scan import glob_regex
from nexofork.tools.search import SearchTools
from tests.strategies import examples
from tests.support.hands import Hands

RIPGREP = shutil.which("rg")
needs_ripgrep = pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed (apt install ripgrep)")


@pytest.fixture(params=["ours", pytest.param("ripgrep", marks=needs_ripgrep)])
def hands(request: pytest.FixtureRequest, tmp_path: Path) -> Hands:
    """Tools in an empty folder, with either program to search with."""
    return Hands(tmp_path, search=SearchTools(cwd=tmp_path, ripgrep=RIPGREP if request.param == "ripgrep" else None))


def plant(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write files, each a second older than the one before."""
    for age, (name, content) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1_700_000_000 - age,) * 2)


def shown(hands: Hands, answer: str) -> list[str]:
    """The lines of an answer, with paths relative to the folder."""
    return answer.replace(f"{hands.folder}/", "").splitlines()


TREE: dict[str, str | bytes] = {
    "new.py": "import os\n",
    "src/main.py": "def main():\n    return 1\n",
    "src/deep/er/util.py": "def util():\n    return main\n",
    "src/page.ts": "const main = 1\r\n",
    ".hidden/note.md": "main\n",
    ".git/config": "main\n",
    "data.bin": b"main\0\1",
}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.py", ["new.py", "src/main.py", "src/deep/er/util.py"]),
        ("*.py", ["new.py", "src/main.py", "src/deep/er/util.py"]),
        ("./*.py", ["new.py"]),
        ("src/*.py", ["src/main.py"]),
        ("*/*/*/*.py", ["src/deep/er/util.py"]),
        ("src/**/*.py", ["src/main.py", "src/deep/er/util.py"]),
        ("src/**", ["src/main.py", "src/deep/er/util.py", "src/page.ts"]),
        ("**/er/*", ["src/deep/er/util.py"]),
        ("*.{ts,md}", ["src/page.ts", ".hidden/note.md"]),
        ("[mn]*.?y", ["new.py", "src/main.py"]),
        ("[!m]*.py", ["new.py", "src/deep/er/util.py"]),
        ("**/.git/*", []),
    ],
)
async def test_glob_finds_files_newest_first(hands: Hands, pattern: str, found: list[str]) -> None:
    """A pattern without a slash is for any folder; hidden files count, what git keeps does not."""
    plant(hands.folder, TREE)

    answer = await hands.good("Glob", pattern=pattern)

    assert found == ([] if answer.startswith("No file in ") else shown(hands, answer))


async def test_glob_takes_absolute_patterns_and_paths(hands: Hands) -> None:
    """The answer's paths are absolute and canonical whatever was asked."""
    plant(hands.folder, TREE)
    (hands.folder / "link").symlink_to("src")

    main = str(hands.folder / "src/main.py")
    assert await hands.good("Glob", pattern=f"{hands.folder}/src/m*") == main
    assert await hands.good("Glob", pattern="m*", path="src") == main
    assert await hands.good("Glob", pattern="../src/m*", path="src") == main
    assert await hands.good("Glob", pattern="m*", path="link") == main


async def test_glob_does_not_go_round_in_circles(hands: Hands) -> None:
    """Links to folders are not followed on the way; links to files are found."""
    plant(hands.folder, {"a/f.txt": "x"})
    (hands.folder / "a/up").symlink_to("..")
    (hands.folder / "a/g.txt").symlink_to("f.txt")
    (hands.folder / "a/broken.txt").symlink_to("nowhere")

    assert sorted(shown(hands, await hands.good("Glob", pattern="**/*.txt"))) == ["a/f.txt", "a/g.txt"]


async def test_glob_shows_the_thousand_newest(tmp_path: Path) -> None:
    """And says how many there are."""
    plant(tmp_path, {f"{number}.txt": "" for number in range(1_003)})

    lines = (await Hands(tmp_path).good("Glob", pattern="*.txt")).splitlines()

    assert lines[0] == str(tmp_path / "0.txt")
    assert lines[1_000:] == [f"[{tmp_path}: 1000 of 1003 shown]"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Glob", {}, "needs a `pattern`"),
        ("Glob", {"pattern": "*", "path": "gone"}, "does not exist"),
        ("Glob", {"pattern": "*", "path": "new.py"}, "is not a directory"),
        ("Glob", {"pattern": "*", "path": "/proc"}, "belongs to the kernel"),
        ("Glob", {"pattern": "*/../x"}, "cannot go up"),
        ("Glob", {"pattern": "a{b"}, "a brace is not closed"),
        ("Glob", {"pattern": "a[b"}, "a bracket is not closed"),
        ("Glob", {"pattern": "a\0"}, "must not hold a NUL"),
        ("Grep", {}, "needs a `pattern`"),
        ("Grep", {"pattern": "("}, "Grep could not search"),
        ("Grep", {"pattern": "a\nb"}, "Grep could not search"),
        ("Grep", {"pattern": "a\0"}, "must not hold a NUL"),
        ("Grep", {"pattern": "a", "path": "gone"}, "does not exist"),
        ("Grep", {"pattern": "a", "path": "pipe"}, "is a named pipe"),
        ("Grep", {"pattern": "a", "path": "data.bin"}, "is a binary file"),
        ("Grep", {"pattern": "a", "path": "/proc/self/environ"}, "belongs to the kernel"),
        ("Grep", {"pattern": "a", "type": "klingon"}, "klingon"),
        ("Grep", {"pattern": "a", "output_mode": "all"}, "one of files_with_matches, content, count"),
        ("Grep", {"pattern": "a", "-A": -1}, "`-A` of Grep"),
        ("Grep", {"pattern": "a", "-i": 1}, "true or false"),
        ("Grep", {"pattern": "a", "head_limit": "9"}, "`head_limit` of Grep"),
    ],
)
async def test_a_search_that_cannot_be_is_an_answer(
    hands: Hands, name: str, arguments: dict[str, Any], words: str
) -> None:
    """It says what is wrong; nothing blocks."""
    plant(hands.folder, TREE)
    os.mkfifo(hands.folder / "pipe")

    assert words in await hands.bad(name, **arguments)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "main"}, [".hidden/note.md", "src/deep/er/util.py", "src/main.py", "src/page.ts"]),
        ({"pattern": "main", "glob": "*.py"}, ["src/deep/er/util.py", "src/main.py"]),
        ({"pattern": "main", "glob": "src/*"}, ["src/main.py", "src/page.ts"]),
        ({"pattern": "main", "type": "py"}, ["src/deep/er/util.py", "src/main.py"]),
        ({"pattern": "main", "type": "py", "glob": "src/*"}, ["src/main.py"]),
        ({"pattern": "MAIN", "-i": True, "path": "src", "glob": "*.ts"}, ["src/page.ts"]),
        ({"pattern": "= 1$"}, ["src/page.ts"]),
        ({"pattern": "-- 1"}, []),
        ({"pattern": "main", "output_mode": "count", "path": "src"}, ["deep/er/util.py:1", "main.py:1", "page.ts:1"]),
        ({"pattern": "def", "output_mode": "content", "-n": False, "glob": "main.py"}, ["src/main.py:def main():"]),
        (
            {"pattern": "return", "output_mode": "content", "-B": 1, "type": "py"},
            [
                "src/deep/er/util.py-1-def util():",
                "src/deep/er/util.py:2:    return main",
                "--",
                "src/main.py-1-def main():",
                "src/main.py:2:    return 1",
            ],
        ),
        (
            {"pattern": r"\(\):\n +return 1", "output_mode": "content", "multiline": True},
            ["src/main.py:1:def main():", "src/main.py:2:    return 1"],
        ),
    ],
)
async def test_grep_finds_lines(hands: Hands, arguments: dict[str, Any], found: list[str]) -> None:
    """In files of all kinds except binary ones; the same with ripgrep and without."""
    plant(hands.folder, TREE)

    answer = await hands.good("Grep", **arguments)

    if not found:
        assert answer == f"Nothing in {hands.folder} matches."
    else:
        strip = f"{hands.folder}/src/" if arguments.get("output_mode") == "count" else f"{hands.folder}/"
        assert answer.replace(strip, "").splitlines() == found


async def test_grep_says_what_it_does_not_show(hands: Hands) -> None:
    """Lines beyond the limit, and what is beyond a line's length."""
    plant(hands.folder, {"a.txt": "x\n" * 5_000, "b.txt": "y" * 100_000 + "\n"})

    few = await hands.good("Grep", pattern="x", output_mode="content", head_limit=2)
    many = await hands.good("Grep", pattern="x", output_mode="content")
    long = await hands.good("Grep", pattern="y", output_mode="content")

    assert shown(hands, few)[:2] == ["a.txt:1:x", "a.txt:2:x"]
    assert shown(hands, few)[2:] == ["[only the first 2 lines are shown; narrow the search to see others]"]
    assert len(many.splitlines()) == 1_001
    assert len(long) < 1_200
    assert long.endswith("[lines of more than 1000 bytes were cut]")


async def test_a_pattern_that_never_ends_is_ended(tmp_path: Path) -> None:
    """The daemon goes on meanwhile, and the answer says what to do."""
    plant(tmp_path, {"a.txt": "a" * 60 + "\n"})
    hands = Hands(tmp_path, search=SearchTools(cwd=tmp_path, ripgrep=None, limits=Limits(time_s=0.5)))
    began = time.monotonic()

    answer = await hands.bad("Grep", pattern="(a+)+b")

    assert "The search was ended: it ran longer than 0.5 s. Narrow" in answer
    assert time.monotonic() - began < 10


async def test_an_aborted_search_ends_at_once(tmp_path: Path) -> None:
    """Its program is killed with it."""
    plant(tmp_path, {"a.txt": "a" * 60 + "\n"})
    hands = Hands(tmp_path, search=SearchTools(cwd=tmp_path, ripgrep=None))
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await hands.outcome("Grep", pattern="(a+)+b")

    assert time.monotonic() - began < 10


async def test_the_filter_judges_where_a_search_begins(hands: Hands) -> None:
    """By the path without links."""
    plant(hands.folder, {"outside/f": "x"})
    (hands.folder / "link").symlink_to("outside")
    asked: list[tuple[str, str]] = []

    def deny(name: str, arguments: dict[str, Any]) -> str:
        asked.append((name, arguments["path"]))
        return "no"

    for name in ("Glob", "Grep"):
        outcome = await hands.judged(name, deny, pattern="x", path="link")
        assert (outcome.is_error, outcome.content) == (True, f"{name} was not run: no")
    assert asked == [("Glob", f"{hands.folder}/outside"), ("Grep", f"{hands.folder}/outside")]


@given(name=st.text(alphabet="ab./", min_size=1, max_size=8), pattern=st.text(alphabet="ab.*?[]{},!/\\-^", max_size=10))
@examples(300)
def test_any_glob_is_a_pattern_or_refused(name: str, pattern: str) -> None:
    """Nothing else can come of it."""
    try:
        glob_regex(pattern).fullmatch(name)
    except ValueError:
        return


NAMES = st.sampled_from(["a.txt", "b.py", ".c", "d/a.py", "d/e/f.txt", "d/.g/h.py", "é.md", ".git/x.py", "d/.git"])
LINES = st.lists(st.text(alphabet="abAB -:é", max_size=8), max_size=8)
CONTENTS = st.tuples(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans()).map(
    lambda drawn: (drawn[1].join(drawn[0]) + (drawn[1] if drawn[2] else "")).encode()
)
BINARY = st.binary(max_size=10).map(lambda data: b"\0" + data)
PATTERNS = st.sampled_from(["a", "b+", "^a", "b$", "^$", "[ab]{2}", "a|B", "é", r"\ba", r"\w-", ".", "(a)(b)?", "- "])
ORDERS = st.fixed_dictionaries(
    {
        "pattern": PATTERNS,
        "output_mode": st.sampled_from(["content", "files_with_matches", "count"]),
        "-i": st.booleans(),
        "-n": st.booleans(),
        "-A": st.integers(0, 2),
        "-B": st.integers(0, 2),
        "glob": st.sampled_from([None, "*.py", "*.{txt,md}", "d/*", "d/**", "**/f.*", "[ab].*", ".*", "?.txt"]),
        "type": st.sampled_from([None, None, "py", "md"]),
    }
)


@needs_ripgrep
@given(files=st.dictionaries(NAMES, CONTENTS | BINARY, max_size=6), order=ORDERS)
@examples(60)
def test_ours_and_ripgrep_find_the_same(files: dict[str, bytes], order: dict[str, Any]) -> None:
    """For any small tree and any way of asking, to the byte."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        plant(folder, {path: data for path, data in files.items() if path != "d/.git"})
        searches = [SearchTools(cwd=folder, ripgrep=program) for program in (None, RIPGREP)]

        ours, theirs = (asyncio.run(Hands(folder, search=search).good("Grep", **order)) for search in searches)

    assert ours == theirs


@needs_ripgrep
@pytest.mark.parametrize("kind", ["--pre", "-uuu"])
async def test_a_type_is_never_an_option_of_ripgrep(tmp_path: Path, kind: str) -> None:
    """However it is written, it is looked up among the types."""
    hands = Hands(tmp_path, search=SearchTools(cwd=tmp_path, ripgrep=RIPGREP))

    assert f"unrecognized file type: {kind}" in await hands.bad("Grep", pattern="a", type=kind)
