"""What sidecars are told. All of it stands behind what the session has cached, so it may change from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["INDEX", "NOTHING", "away_prompt", "btw_prompt", "dream_prompt", "notes_prompt", "suggest_prompt"]

INDEX = "INDEX.md"
"""The one note that lists the others."""
NOTHING = "NOTHING"
"""What a sidecar answers that has nothing to say."""

_ASIDE = (
    "A task beside the conversation. Its user does not see this message or your answer, and the work above is not "
    "yours to continue: it is what you know. Start no agents."
)


def dream_prompt(folder: Path) -> str:
    """Return what a memory consolidation is told."""
    return f"""{_ASIDE}

Look after the notes in {folder}. Whoever works here next begins with them and with nothing else. Go through four steps:

1. Orient. List the folder and read {INDEX} if there is one. See what the notes are about before you judge any of them.
2. Gather. Find in the conversation what will still be true and useful in a month: decisions and why they were \
taken, what the user asks for again and again, facts about the code and its surroundings that took effort to find \
out, mistakes and how they were recognised. What can be read off the code in a moment is not worth a note, and \
neither is a secret.
3. Consolidate. Put it where it belongs: extend the note on that subject, begin one where there is none. One \
subject, one file. Correct what has turned out wrong instead of adding that it was wrong. Write dates as dates, \
never as "yesterday".
4. Prune. Remove what is outdated, said twice or of no use to anybody. Empty a file that nothing is left of. Keep \
{INDEX} at one line per note, with the file's name and what is in it.

You may read everything and write files in that folder only, each by its absolute path. If there is nothing to do, \
do nothing. Answer in the end with one short paragraph: what you changed and why, or that nothing had to change."""


def notes_prompt(current: str) -> str:
    """Return what an extraction of session notes is told.

    Args:
        current: The notes as they are; empty where there are none.
    """
    known = f"<notes>\n{current}\n</notes>" if current.strip() else "There are no notes yet."
    return f"""{_ASIDE}

Write the notes of this session: what somebody would need who has to go on with it and cannot see the conversation. \
They have four headings: "Task" (what the user wants, in the user's terms), "State" (what is done, what is under \
way, where), "Decisions" (what was chosen and why, what was tried in vain) and "Next" (what comes first). Name \
files, commands and figures exactly. Leave out what the files themselves show, and leave out secrets. Stay below 800 \
words.

The notes so far:
{known}

Use no tools. Answer with the complete new notes in Markdown and nothing else, or with {NOTHING} if the notes so far \
still say it all."""


def away_prompt(since: str) -> str:
    """Return what a summary for a user who comes back is told.

    Args:
        since: How long or since when the user was away, in words; empty where nobody knows.
    """
    gone = f"The user was away ({since}) and is back" if since.strip() else "The user was away and is back"
    return f"""{_ASIDE}

{gone}. Say in at most five sentences what happened meanwhile and where things stand: what was finished, what is \
still going on, what went wrong, and what waits for the user. Begin with what waits, if anything does. You may look \
things up, but change nothing. No greeting, no headings, no offers. Answer with {NOTHING} if nothing happened."""


def suggest_prompt() -> str:
    """Return what a suggestion of the user's next message is told."""
    return f"""{_ASIDE}

What will the user most likely type next? Answer with that message alone, in the user's own tone and language: one \
line of at most twelve words, no quotation marks, nothing around it. It has to follow from the conversation; if \
several things are as likely, or the user has to think first, answer {NOTHING}. Use no tools."""


def btw_prompt(question: str) -> str:
    """Return what a side question is told."""
    return f"""The user asks something in passing, while the work above goes on without you. Answer from what the \
conversation shows and from what you know; use no tools, change nothing, promise nothing. Be brief. If the \
conversation does not say, say so.

{question}"""
