"""What `aero ask` shows while it runs."""

from __future__ import annotations

import time
import unicodedata

PLAIN_S = 2.0
JOINERS = "\u200c\u200d"
"""Format characters that many scripts and emoji need; they move and hide nothing."""


class Display:
    """The prompt and the answer on standard output, what is going on on standard error.

    A terminal shows all of it in one changing view, and gets the text when it is complete. Elsewhere the text is
    printed as it comes, and what is going on as a line every PLAIN_S seconds. `--json` leaves both to terminals.
    """

    def __init__(self, prompt: str, as_json: bool) -> None:
        from rich.console import Console

        self._prompt, self._answer, self._as_json = prompt, "", as_json
        self._since, self._said_at = time.monotonic(), -PLAIN_S
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._view = self._console.status("")
        if self._console.is_terminal:
            self._view.start()

    def close(self) -> None:
        """End the view, and the line of the answer. Without effect if closed."""
        self._view.stop()
        if self._answer and not self._as_json:
            print(printable(self._prompt + self._answer) if self._console.is_terminal else "", flush=True)
        self._answer = ""

    def say(self, doing: str) -> None:
        """What is going on."""
        from rich.text import Text

        now = time.monotonic()
        self._view.update(Text(f"{printable(self._prompt + self._answer)}\n{doing} ({now - self._since:.0f} s)"))
        if not self._console.is_terminal and now - self._said_at >= PLAIN_S:
            self._said_at = now
            self.note(f"{doing} ({now - self._since:.0f} s)")

    def note(self, line: str) -> None:
        if self._console.is_terminal or not self._as_json:
            self._console.print(line, soft_wrap=True)

    def show(self, answer: str) -> None:
        """The answer so far."""
        if not self._console.is_terminal and not self._as_json:
            more = answer[len(self._answer) :] if self._answer else self._prompt + answer
            print(printable(more), end="", flush=True)
        self._answer = answer


def printable(text: str) -> str:
    """The text with control and format characters escaped, except line feed, tab and JOINERS.

    A server chooses its tokenizer, and a terminal obeys such characters.
    """
    allowed = f"\n\t{JOINERS}"
    return "".join(
        char if char in allowed or unicodedata.category(char) not in ("Cc", "Cf") else repr(char)[1:-1] for char in text
    )
