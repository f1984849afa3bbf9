"""The real huggingface_hub client, in this process or in another, pointed at a server of the tests."""

import os
from pathlib import Path

import pytest
from hub_protocol import HubServer
from huggingface_hub import HfApi

_OWN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE")


def use_client(monkeypatch: pytest.MonkeyPatch, tmp: Path, endpoint: str | None = None) -> None:
    """This process's client: no token and no cache of the user's, no Xet, no pauses between its tries."""
    for name in _OWN:
        monkeypatch.delenv(name, raising=False)
    constants: dict[str, object] = {
        "HF_TOKEN_PATH": str(tmp / "no-token"),
        "HF_HUB_CACHE": str(tmp / "hf"),
        "HF_HUB_DISABLE_XET": True,
    }
    if endpoint:  # as HF_ENDPOINT is read when the client is imported
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        constants |= {"ENDPOINT": endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template}
    for name, value in constants.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def client(hub: HubServer, token: str | None = None) -> HfApi:
    """A client of this server."""
    return HfApi(endpoint=hub.url, token=token or False)


def environment(hub: HubServer, home: Path, token: str = "") -> dict[str, str]:
    """Another user on another machine: a cache, a store and a token of their own."""
    clean = {name: value for name, value in os.environ.items() if name not in _OWN and not name.startswith("TCHUB_")}
    own = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TCHUB_CACHE": str(home / "cache"),
        "TCHUB_HOME": str(home / "home"),
    }
    return clean | own | ({"HF_TOKEN": token} if token else {})
