"""Catalogues to read: of toys, and of the checkpoints that ship."""

from pathlib import Path

import pytest
from tchub.hub.registry import Index, Registry, Store
from tchub.hub.site.build import build
from toy_checkpoints import make_registry, publish


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two checkpoints of one family, one of them in two versions, and one of another family."""
    wheel = tmp_path / "wheel"
    entries = [
        publish(wheel, "tcl-epyc", "1.0.0"),
        publish(wheel, "tcl-epyc", "1.1.0"),
        publish(wheel, "tilenet-epyc", feature_schema="nest-cpu"),
        publish(wheel, "tcl-a100", feature_schema="tcl-gpu"),
    ]
    return make_registry(tmp_path, *entries, wheel=wheel)


@pytest.fixture
def site(registry: Registry, tmp_path: Path) -> Path:
    """The catalogue of the toys."""
    return build(registry, tmp_path / "site").path


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of what ships, with its real cards and plots."""
    folder = tmp_path_factory.mktemp("released")
    return build(Registry(Index.shipped(), Store(folder / "cache"), Store(folder / "home")), folder / "site").path
