"""A page in headless Chromium, driven through its debugging pipe: no port, no package, no network.

`page(...)` gives a page with what a reader does (click, type, choose, press keys) and what a test looks at: console
errors, requests, the width of what is laid out, a picture.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60


def executable() -> str | None:
    """The browser to use; None where none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. `errors` (uncaught exceptions too), `warnings`: of its console; `requests`: addresses it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write, self._read = to_browser, from_browser
        self._number, self._buffer = 0, b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser to one command; RuntimeError with its message if it refuses."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer.get("result", {})

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser ended" if ready else f"no answer of the browser in {SECONDS} s")
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        found = json.loads(text)
        self._note(found)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        about, method = event.get("params", {}), event.get("method")
        if method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            text = " ".join(str(one.get("value", one.get("description"))) for one in about["args"])
            (self.warnings if about["type"] == "warning" else self.errors).append(text)
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            (self.warnings if about["entry"]["level"] == "warning" else self.errors).append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method:
            self._events.append(event)

    def open(self, path: Path) -> None:
        """Load the file and wait until it has run."""
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; RuntimeError with its exception."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """What is written in every element that the selector finds, as it is shown."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText.trim())")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def choose(self, selector: str, value: str) -> None:
        """Choose an option as a reader does: the page hears of it."""
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def write(self, selector: str, text: str) -> None:
        """Replace what stands in a field by typing."""
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()"
        )
        self.key("Delete", 46) if not text else self.call("Input.insertText", text=text)

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key: its name ("Tab", "Enter"), its Windows code, the text it writes."""
        about = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def look(self, width: int, height: int = 900, media: str = "screen", dark: bool = False) -> None:
        """Lay the page out for a window so wide, on screen or for print, light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def picture(self, path: Path, selector: str = "body") -> None:
        """A PNG of an element, all of it."""
        box = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height, scale: 1}; })()"
        )
        answer = self.call("Page.captureScreenshot", format="png", clip=box, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def page() -> Iterator[Page]:
    """A page of a browser of its own, which ends with it."""
    found = executable()
    if found is None:
        raise RuntimeError(f"no Chromium here; looked for {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="aero-chromium-", ignore_cleanup_errors=True) as folder:
        (read_commands, to_browser), (from_browser, write_answers) = os.pipe(), os.pipe()
        command = [found, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--disable-gpu"]
        command += ["--no-first-run", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        # Its sandbox refuses to run as root, which is who runs tests in most containers.
        command += ["--no-sandbox"] if os.geteuid() == 0 else []

        def pipes_as_3_and_4() -> None:
            high = (os.dup(read_commands), os.dup(write_answers))
            for wanted, descriptor in zip((3, 4), high, strict=True):
                os.dup2(descriptor, wanted)

        process = subprocess.Popen(
            command,
            pass_fds=(3, 4),
            preexec_fn=pipes_as_3_and_4,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            os.close(read_commands)
            os.close(write_answers)
            yield Page(to_browser, from_browser)
        finally:
            os.close(to_browser)
            os.close(from_browser)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)
