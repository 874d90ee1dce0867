"""FileRead, FileWrite and FileEdit: what a model sees of files, and what becomes of them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nexofork.tools import file_write, named_file
from nexofork.tools.arguments import Unable
from nexofork.tools.file_read import WHOLE_BYTES
from nexofork.tools.file_write import Edit, edit_file, write_file
from nexofork.tools.named_file import FilePath
from nexofork.tools.threads import Stop, in_thread
from tests.strategies import examples
from tests.support.hands import Hands
from tests.support.waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    """Tools in an empty folder."""
    return Hands(tmp_path)


def digest(data: bytes) -> str:
    """What a file state holds of a content."""
    return hashlib.sha256(data).hexdigest()


def at(path: Path) -> FilePath:
    """A file that is where it seems to be."""
    return FilePath(str(path), str(path))


async def test_lines_are_shown_with_their_numbers(hands: Hands) -> None:
    """As `cat -n` shows them, from the offset on, and what follows is said."""
    (hands.folder / "a.txt").write_text("one\ntwo\n\nfour")

    assert await hands.good("FileRead", file_path="a.txt") == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"
    assert await hands.good("FileRead", file_path="a.txt", offset=2, limit=1) == (
        "     2\ttwo\n[more lines follow; go on with offset 3]"
    )


async def test_two_thousand_lines_are_shown_unless_asked_for_more(hands: Hands) -> None:
    """The answer says where to go on."""
    (hands.folder / "a.txt").write_text("x\n" * 3_000)

    shown = await hands.good("FileRead", file_path="a.txt")

    assert shown.splitlines()[-2:] == ["  2000\tx", "[more lines follow; go on with offset 2001]"]
    assert (await hands.good("FileRead", file_path="a.txt", limit=5_000)).splitlines()[-1] == "  3000\tx"


async def test_an_answer_has_a_size_whatever_is_asked_for(hands: Hands) -> None:
    """A million lines are not one answer."""
    (hands.folder / "a.txt").write_text("0123456789\n" * 200_000)

    shown = await hands.good("FileRead", file_path="a.txt", limit=10**9)

    assert len(shown) < 200_000
    assert "go on with offset" in shown


async def test_a_long_line_is_cut_and_said_to_be(hands: Hands) -> None:
    """The line behind it keeps its number."""
    (hands.folder / "a.txt").write_text("ä" * 50_000 + "\nnext\n")

    shown = await hands.good("FileRead", file_path="a.txt")

    assert shown.splitlines()[0] == "     1\t" + "ä" * 2_000 + " [cut]"
    assert shown.splitlines()[1] == "     2\tnext"
    assert "[lines of more than 2000 characters were cut]" in shown
    assert "UTF-8" not in shown


async def test_a_huge_file_is_read_in_pieces(hands: Hands) -> None:
    """Ten gigabytes, most of them a hole: its first lines come at once; it is not kept as seen, and not edited."""
    with (hands.folder / "huge").open("wb") as file:
        file.write(b"line\n" * 20_000)
        file.truncate(10 * 1024**3)

    shown = await hands.good("FileRead", file_path="huge", offset=3, limit=2)

    assert shown.startswith("     3\tline\n     4\tline\n[more lines follow")
    assert "can only be changed with Bash" in shown
    assert hands.context.file_state == {}
    for name, more in (("FileWrite", {"content": "x"}), ("FileEdit", {"old_string": "line", "new_string": "x"})):
        assert "Use Bash" in await hands.bad(name, file_path="huge", **more)


async def test_an_aborted_read_ends_at_once_and_the_loop_goes_on_meanwhile(hands: Hands) -> None:
    """However far a file would have to be read for the line that was asked for."""
    with (hands.folder / "huge").open("wb") as file:
        file.write(b"line\n" * 20_000)
        file.truncate(1024**4)
    began, turns = time.monotonic(), 0

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(hands.outcome("FileRead", file_path="huge", offset=10**9))
        while time.monotonic() - began < 0.3:
            await asyncio.sleep(0.005)
            turns += 1
        reading.cancel()

    assert reading.cancelled()
    assert turns > 10
    assert time.monotonic() - began < 5


async def test_invalid_utf8_is_shown_as_far_as_it_goes(hands: Hands) -> None:
    """Bytes that are no text are replaced, and that is said."""
    (hands.folder / "a.txt").write_bytes(b"caf\xe9\nfine\n")

    shown = await hands.good("FileRead", file_path="a.txt")

    assert shown.splitlines()[:2] == ["     1\tcaf\ufffd", "     2\tfine"]
    assert "not all of it is valid UTF-8" in shown


async def test_a_byte_order_mark_and_crlf_are_said_not_shown(hands: Hands) -> None:
    """The model copies lines; what it cannot see it has to be told."""
    (hands.folder / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")

    shown = await hands.good("FileRead", file_path="a.txt")

    assert shown.splitlines()[:2] == ["     1\tone", "     2\ttwo"]
    assert "byte order mark" in shown
    assert "lines end with CRLF" in shown


async def test_an_empty_file_is_not_an_error(hands: Hands) -> None:
    """It was read, so it may be written."""
    (hands.folder / "a.txt").touch()

    assert await hands.good("FileRead", file_path="a.txt") == f"[{hands.folder / 'a.txt'} is empty]"
    await hands.good("FileWrite", file_path="a.txt", content="x")


def make_special(folder: Path) -> None:
    """Everything that is not a plain text file."""
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(b"ELF\0\1\2")
    (folder / "picture").write_bytes(PNG)
    (folder / "document").write_bytes(b"%PDF-1.7\n%more")
    (folder / "short").write_text("one\ntwo\n")
    os.mkfifo(folder / "pipe")
    (folder / "circle").symlink_to("circle")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "to-device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(folder)  # a socket's name must be short
        bound.bind("socket")
        os.chdir(here)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs a `file_path`"),
        ({"file_path": ""}, "needs a `file_path`"),
        ({"file_path": 7}, "needs a `file_path`"),
        ({"file_path": {"path": "short"}}, "needs a `file_path`"),
        ({"file_path": "a\0b"}, "is not a path"),
        ({"file_path": "\ud800"}, "is not a path"),
        ({"file_path": "x" * 5_000}, "too long"),
        ({"file_path": "gone"}, "does not exist"),
        ({"file_path": "~/short"}, "does not exist"),
        ({"file_path": "short/inner"}, "not a directory"),
        ({"file_path": "folder"}, "is a directory; use Glob"),
        ({"file_path": "/"}, "is a directory; use Glob"),
        ({"file_path": "binary"}, "is a binary file"),
        ({"file_path": "picture"}, "is a PNG image, which cannot be shown here"),
        ({"file_path": "document"}, "is a PDF document, which cannot be shown here"),
        ({"file_path": "pipe"}, "is a named pipe"),
        ({"file_path": "socket"}, "is a socket"),
        ({"file_path": "dangling"}, "nowhere does not exist"),
        ({"file_path": "circle"}, "circle"),
        ({"file_path": "to-device"}, "/dev/zero belongs to the kernel"),
        ({"file_path": "/proc/self/environ"}, "belongs to the kernel"),
        ({"file_path": "/proc/self/root/proc/1/environ"}, "belongs to the kernel"),
        ({"file_path": "short", "offset": 3}, "has only 2 lines"),
        ({"file_path": "short", "offset": -1}, "`offset` of FileRead"),
        ({"file_path": "short", "offset": "2"}, "`offset` of FileRead"),
        ({"file_path": "short", "limit": 0}, "`limit` of FileRead"),
        ({"file_path": "short", "limit": True}, "`limit` of FileRead"),
    ],
)
async def test_what_cannot_be_read_is_an_answer(hands: Hands, arguments: dict[str, Any], words: str) -> None:
    """Nothing blocks, nothing raises; the answer says what is wrong."""
    make_special(hands.folder)
    async with asyncio.timeout(10):
        assert words in await hands.bad("FileRead", **arguments)


def test_a_refusal_of_the_system_is_put_in_words() -> None:
    """Permission, space and quota; what has no words of its own keeps the system's."""
    assert "permission denied" in str(named_file.explained(at(Path("/f")), PermissionError(errno.EACCES, "x")))
    assert "the disk is full. The file is as it was" in str(
        named_file.explained(at(Path("/f")), OSError(errno.ENOSPC, "x"))
    )
    assert (
        str(named_file.explained(at(Path("/f")), OSError(errno.EIO, "Input/output error"))) == "/f: Input/output error."
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
async def test_a_file_that_may_not_be_touched_stays_as_it_is(hands: Hands) -> None:
    """Neither read nor replaced by a rename that the folder would allow."""
    (hands.folder / "secret").write_text("x")
    (hands.folder / "secret").chmod(0)

    assert "permission denied" in await hands.bad("FileRead", file_path="secret")
    assert "permission denied" in await hands.bad("FileWrite", file_path="secret", content="y")


async def test_a_new_file_is_written_with_its_folders(hands: Hands) -> None:
    """With the mode a new file gets, nothing left beside it, and known from then on."""
    said = await hands.good("FileWrite", file_path="a/b/new.txt", content="hällo\n")

    path = hands.folder / "a/b/new.txt"
    assert said == f"Created {path} (7 bytes)."
    assert path.read_text() == "hällo\n"
    (hands.folder / "plain").touch()
    assert path.stat().st_mode == (hands.folder / "plain").stat().st_mode
    assert os.listdir(path.parent) == ["new.txt"]
    assert hands.context.file_state == {str(path): digest("hällo\n".encode())}
    await hands.good("FileEdit", file_path="a/b/new.txt", old_string="hällo", new_string="bye")


async def test_a_file_that_was_not_read_is_not_overwritten_or_edited(hands: Hands) -> None:
    """The answer asks for a read first, and after one it works."""
    path = hands.folder / "a.txt"
    path.write_text("old")

    assert "has not been read; read it with FileRead" in await hands.bad("FileWrite", file_path="a.txt", content="new")
    refused = await hands.bad("FileEdit", file_path="a.txt", old_string="old", new_string="new")
    assert "has not been read; read it with FileRead" in refused
    assert path.read_text() == "old"

    await hands.good("FileRead", file_path="a.txt")
    assert await hands.good("FileWrite", file_path="a.txt", content="new") == f"Overwrote {path} (3 bytes)."
    assert path.read_text() == "new"


async def test_a_file_that_changed_since_is_not_overwritten_or_edited(hands: Hands) -> None:
    """What somebody else wrote meanwhile is not lost."""
    path = hands.folder / "a.txt"
    path.write_text("old")
    await hands.good("FileRead", file_path="a.txt")
    path.write_text("theirs")

    assert "has changed since" in await hands.bad("FileWrite", file_path="a.txt", content="new")
    refused = await hands.bad("FileEdit", file_path="a.txt", old_string="theirs", new_string="new")
    assert "has changed since it was read; read it again" in refused
    assert path.read_text() == "theirs"


async def test_what_the_parent_saw_counts_as_read_where_it_is_the_same(tmp_path: Path) -> None:
    """By its canonical path or by the one it is named by; not where the content differs."""
    (tmp_path / "same.txt").write_text("seen")
    (tmp_path / "other.txt").write_text("not what the parent saw")
    (tmp_path / "link.txt").symlink_to("linked.txt")
    (tmp_path / "linked.txt").write_text("seen")
    seen = {str(tmp_path / name): digest(b"seen") for name in ("same.txt", "other.txt", "link.txt")}
    hands = Hands(tmp_path, file_state=seen)

    edit = {"old_string": "seen", "new_string": "edited"}
    await hands.good("FileEdit", file_path="same.txt", **edit)
    await hands.good("FileEdit", file_path=str(tmp_path / "link.txt"), **edit)

    assert "has changed since" in await hands.bad("FileEdit", file_path="other.txt", old_string="not", new_string="x")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "linked.txt").read_text() == "edited"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"old_string": "absent", "new_string": "x"}, "read the file with FileRead and copy the text exactly"),
        ({"old_string": "two", "new_string": "x"}, "2 times"),
        ({"old_string": "one", "new_string": "one"}, "are the same"),
        ({"old_string": "", "new_string": "x"}, "`old_string` is empty; use FileWrite"),
        ({"old_string": "one"}, "needs a `new_string`"),
        ({"new_string": "one"}, "needs a `old_string`"),
        ({"old_string": 1, "new_string": "x"}, "needs a `old_string`"),
        ({"old_string": "one", "new_string": "\ud800"}, "half a surrogate pair"),
        ({"old_string": "one", "new_string": "x", "replace_all": "yes"}, "has to be true or false"),
    ],
)
async def test_an_edit_that_cannot_be_meant_changes_nothing(
    hands: Hands, arguments: dict[str, Any], words: str
) -> None:
    """Each has its own answer."""
    path = hands.folder / "a.txt"
    path.write_text("one two two")
    await hands.good("FileRead", file_path="a.txt")

    assert words in await hands.bad("FileEdit", file_path="a.txt", **arguments)
    assert path.read_text() == "one two two"


async def test_a_missing_a_binary_and_a_special_file_are_not_edited(hands: Hands) -> None:
    """Each has its own answer here too."""
    make_special(hands.folder)
    edit = {"old_string": "E", "new_string": "x"}
    hands.context.file_state[str(hands.folder / "binary")] = digest(b"ELF\0\1\2")

    assert "does not exist" in await hands.bad("FileEdit", file_path="gone", **edit)
    assert "is a binary file" in await hands.bad("FileEdit", file_path="binary", **edit)
    assert "is a directory" in await hands.bad("FileEdit", file_path="folder", **edit)
    assert "is a named pipe" in await hands.bad("FileEdit", file_path="pipe", **edit)
    assert "is a directory" in await hands.bad("FileWrite", file_path="folder", content="x")
    assert "is a socket" in await hands.bad("FileWrite", file_path="socket", content="x")
    assert "belongs to the kernel" in await hands.bad("FileWrite", file_path="/proc/self/comm", content="x")
    assert "not a directory" in await hands.bad("FileWrite", file_path="short/x", content="x")
    assert "up to" in await hands.bad("FileWrite", file_path="big", content="x" * (WHOLE_BYTES + 1))


async def test_a_huge_file_is_not_edited_or_overwritten(hands: Hands) -> None:
    """It cannot be seen as a whole, so it cannot be changed as it was seen; the answer names another way."""
    path = hands.folder / "huge"
    with path.open("wb") as file:
        file.write(b"one\n")
        file.truncate(WHOLE_BYTES + 1)
    hands.context.file_state[str(path)] = "0" * 64

    assert "Bash" in await hands.bad("FileEdit", file_path="huge", old_string="one", new_string="two")
    assert await hands.bad("FileWrite", file_path="huge", content="x")
    assert path.stat().st_size == WHOLE_BYTES + 1


async def test_an_edit_keeps_everything_else(hands: Hands) -> None:
    """The mode, the mark, the line ends, bytes that are no text, and the missing end of the last line."""
    path = hands.folder / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ncaf\xe9\r\ntwo")
    path.chmod(0o751)
    await hands.good("FileRead", file_path="a.txt")

    said = await hands.good("FileEdit", file_path="a.txt", old_string="one\n", new_string="1\nand a half\n")

    assert said == f"Edited {path}: replaced 1 place, in line 1."
    assert path.read_bytes() == b"\xef\xbb\xbf1\r\nand a half\r\ncaf\xe9\r\ntwo"
    assert path.stat().st_mode & 0o7777 == 0o751


async def test_a_changed_file_does_not_run_as_its_owner(hands: Hands) -> None:
    """Set-user-ID and set-group-ID were given to what was in it before."""
    path = hands.folder / "tool"
    path.write_text("one\n")
    path.chmod(0o6755)
    await hands.good("FileRead", file_path="tool")
    await hands.good("FileEdit", file_path="tool", old_string="one", new_string="two")
    assert path.stat().st_mode & 0o7777 == 0o755


async def test_replacing_everywhere_says_how_often(hands: Hands) -> None:
    """And where it begins."""
    (hands.folder / "a.txt").write_text("a\nb\nb b\n")
    await hands.good("FileRead", file_path="a.txt")

    said = await hands.good("FileEdit", file_path="a.txt", old_string="b", new_string="", replace_all=True)

    assert said.endswith("replaced 3 places, the first in line 2.")
    assert (hands.folder / "a.txt").read_text() == "a\n\n \n"


TEXTS = st.text(alphabet=st.sampled_from("ab\n\r\t é😀\u2028\ufeff"), max_size=30)


@given(before=TEXTS, old=TEXTS.filter(bool), after=TEXTS, new=TEXTS, crlf=st.booleans())
@examples(200)
def test_an_edit_is_a_replacement_in_the_text(before: str, old: str, after: str, new: str, crlf: bool) -> None:
    """For any text; in a file of CRLF lines a line feed of the edit is one of its line ends."""
    content, old_here, new_here = before + old + after, old, new
    if crlf:
        content = re.sub("(?<!\r)\n", "\r\n", content)
    if "\n" in content and not re.search("(?<!\r)\n", content):
        old_here, new_here = (re.sub("(?<!\r)\n", "\r\n", text) for text in (old, new))
    assume(old_here in content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(os.path.realpath(folder), "f")
        path.write_bytes(content.encode())
        edit = Edit(old=old.encode(), new=new.encode(), everywhere=True)

        edit_file(at(path), edit, known=digest(content.encode()), stop=Stop())

        assert path.read_bytes().decode() == content.replace(old_here, new_here)


async def test_the_filter_judges_where_a_path_leads(hands: Hands) -> None:
    """A link out of the allowed folder is denied although its own path is inside, for reading and for writing."""
    inside, outside = hands.folder / "inside", hands.folder / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "door").symlink_to(outside)

    def deny(name: str, arguments: dict[str, Any]) -> str | None:
        return None if arguments["file_path"].startswith(f"{inside}/") else "outside"

    for name, path in (("FileRead", "link"), ("FileWrite", "link"), ("FileWrite", "door/new"), ("FileWrite", "../x")):
        outcome = await hands.judged(name, deny, file_path=f"{inside}/{path}", content="x")
        assert (outcome.is_error, outcome.content) == (True, f"{name} was not run: outside")
    assert not (await hands.judged("FileWrite", deny, file_path=f"{inside}/new", content="x")).is_error
    assert os.listdir(outside) == ["secret"]


async def test_a_link_that_is_swapped_in_after_the_check_is_not_followed(hands: Hands) -> None:
    """A folder or a file that becomes a link between the filter's word and the opening is an error."""
    outside = hands.folder / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    for swapped in ("inside", "inside/f"):
        inside = hands.folder / "inside"
        inside.mkdir()
        (inside / "f").write_text("harmless")

        def swap(name: str, arguments: dict[str, Any], swapped: str = swapped) -> None:
            path = hands.folder / swapped
            path.rename(hands.folder / "aside")
            path.symlink_to(outside if path.name == "inside" else outside / "f")

        outcome = await hands.judged("FileRead", swap, file_path="inside/f")

        assert outcome.is_error
        assert "secret" not in str(outcome.content)
        (hands.folder / swapped).unlink()
        (hands.folder / "aside").rename(hands.folder / swapped)
        (inside / "f").unlink()
        inside.rmdir()


async def test_a_hard_link_to_a_file_outside_is_broken_not_written_through(hands: Hands) -> None:
    """The other name keeps the old content."""
    (hands.folder / "outside").write_text("old")
    (hands.folder / "inside").hardlink_to(hands.folder / "outside")
    await hands.good("FileRead", file_path="inside")

    await hands.good("FileWrite", file_path="inside", content="new")

    assert (hands.folder / "outside").read_text() == "old"


async def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(hands: Hands) -> None:
    """A full disk, here in the form of a limit on the size of files."""
    path = hands.folder / "a.txt"
    path.write_text("old")
    code = (
        "import resource, signal; from pathlib import Path; "
        "from nexofork.tools.named_file import FilePath; "
        "from nexofork.tools.threads import Stop; from nexofork.tools.file_write import write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"try: write_file(FilePath({str(path)!r}, {str(path)!r}), b'x' * 5000, known={digest(b'old')!r}, stop=Stop())\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()

    assert said.decode().strip() == f"Unable {path}: File too large."
    assert path.read_text() == "old"
    assert os.listdir(hands.folder) == ["a.txt"]


async def test_an_abandoned_write_does_not_happen_later(tmp_path: Path) -> None:
    """A fork that is aborted while its write waits for its turn leaves the file as it was."""
    path = tmp_path / "a.txt"
    begun = threading.Event()

    def write(stop: Stop) -> None:
        begun.set()
        write_file(at(path), b"late", known=None, stop=stop)

    turn = file_write._TURNS[hash(str(path)) % len(file_write._TURNS)]
    with turn:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(in_thread(write, limit_s=10))
            await eventually(begun.is_set)
            task.cancel()
        assert task.cancelled()
    with turn:
        assert not path.exists()


async def test_work_that_takes_too_long_is_an_answer() -> None:
    """A disk that hangs holds up neither the loop nor the fork."""
    with pytest.raises(Unable, match=r"could not be dealt with in 0\.05 s"):
        await in_thread(_until_stopped, limit_s=0.05)


def _until_stopped(stop: Stop) -> None:
    while True:
        stop.check()


async def test_what_only_looks_runs_side_by_side_and_changes_run_in_order(hands: Hands) -> None:
    """And only what looks may be repeated after a crash."""
    calls = {name: hands.call(name, {}) for name in ("Bash", "FileRead", "FileWrite", "FileEdit", "Glob", "Grep")}

    looks = {"FileRead", "Glob", "Grep"}
    assert {name for name, call in calls.items() if hands.tools.parallel(call)} == looks
    assert {name for name, call in calls.items() if hands.tools.read_only(call)} == looks
