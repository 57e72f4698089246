"""The Hugging Face hub: whether it may be asked, and whether it answers, told within seconds."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request

REACH_SECONDS = 3.0  # `datasets` itself gives up after 23 s of retries

_YES = {"1", "true", "yes", "on"}


def hub_offline() -> bool:
    """Whether the user has told the Hugging Face libraries to stay off the network."""
    return any(os.environ.get(name, "").lower() in _YES for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))


def hub_reachable(seconds: float = REACH_SECONDS) -> bool:
    """Whether the hub answers at all within `seconds`; name resolution, proxies and HF_ENDPOINT included."""
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (403, 407):  # these two are a proxy's answer, not the hub's
                answered.set()
        except (OSError, ValueError):
            pass

    # A thread, because no time-out reaches a name lookup that hangs.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()


def unreachable(what: str, key: str = "corpus.name") -> str:
    """The one line that says what to do without the hub; `key` is the parameter that names the corpus."""
    return f"{what}: no answer from the hub and no local copy; set {key}=python_stdlib or local, or go online"
