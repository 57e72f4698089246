"""The Hugging Face hub: whether it may be used, and whether it answers within seconds."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request

REACH_SECONDS = 3.0  # `datasets` itself gives up after 23 s of retries


def hub_online(seconds: float = REACH_SECONDS) -> bool:
    """Whether the user allows the network and the hub answers within `seconds`."""
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    if any(os.environ.get(name, "").lower() in {"1", "true", "yes", "on"} for name in offline):
        return False
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (403, 407):  # answers of a proxy, not of the hub
                answered.set()
        except (OSError, ValueError):
            pass

    # In a thread, because no time-out applies to a name lookup that hangs.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()
