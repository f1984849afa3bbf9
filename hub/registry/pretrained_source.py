"""Where `from_pretrained` finds a checkpoint: a folder, a repository on the Hub, or a name of the registry."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.errors import TchubError
from .describe import as_object, read_json
from .entry_files import CONFIG_FILE
from .errors import CheckpointNameError, IntegrityError
from .hf import SLOWEST
from .hub_errors import Errand, answered
from .names import Version
from .offline import network_ruled_out

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
ANSWER_SECONDS = 60.0


class RevisionError(TchubError):
    """A revision was given for what has none: a folder, or a name whose version stands in it. Field: `revision`."""


@dataclass(frozen=True)
class Access:
    """How the Hub is asked: as `ModelHubMixin.from_pretrained` has it."""

    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    force_download: bool = False
    local_files_only: bool = False


def find_checkpoint(place: str | Path, scratch: Path, access: Access) -> Path:
    """The folder of a checkpoint.

    Args:
        place: a folder; `org/name` on the Hub; or `arch-family[@X.Y.Z]`, which is verified by its sha256.
        scratch: an empty folder, for the files of a repository.

    Raises:
        RevisionError: a revision of a folder or of a name.
        SourceError, IntegrityError: the Hub does not give it, or something larger than a checkpoint.
        TchubError: a subclass for each way in which a name can fail, see `tchub.hub.pull`.
    """
    is_folder, is_repo = Path(place).is_dir(), isinstance(place, str) and place.count("/") == 1
    if is_repo and not is_folder:
        _download(str(place), scratch, access)
        return scratch
    if access.revision is not None:
        raise RevisionError(
            f"{place} has no revisions",
            remedy="leave revision out; the version of a name is written NAME@X.Y.Z",
            revision=access.revision,
        )
    if is_folder or isinstance(place, Path) or "/" in place:
        return Path(place)
    from ..api import locate

    return locate(place, offline=_is_offline(access)).path


def newest_version(names: Iterable[str]) -> str | None:
    """The newest of the tags that are versions, `vX.Y.Z`; a pre-release only where there is no release."""
    versions = [(found, name) for name in names if (found := _version(name)) is not None]
    released = [one for one in versions if not one[0].pre]
    return max(released or versions, key=lambda one: one[0], default=(None, None))[1]


def _version(tag: str) -> Version | None:
    try:
        return Version.parse(tag.removeprefix("v")) if tag.startswith("v") else None
    except CheckpointNameError:
        return None


def _download(repo: str, folder: Path, access: Access) -> None:
    """Config and weights of a repository, copied out of the Hub's cache, which is made of links."""
    from ...zoo.models.audit import MAX_WEIGHT_BYTES
    from ...zoo.models.config import MAX_CONFIG_BYTES
    from ...zoo.models.files import WEIGHT_FILES
    from ...zoo.models.registry import get_architecture

    revision = access.revision or _newest(repo, access)
    config = _file(repo, CONFIG_FILE, revision, access, MAX_CONFIG_BYTES)
    shutil.copyfile(config, folder / CONFIG_FILE)
    arch = as_object(read_json(folder / CONFIG_FILE)).get("arch")
    if not isinstance(arch, str):
        return  # what is wrong with the config is the audit's to say
    weights = WEIGHT_FILES[get_architecture(arch).weights]
    shutil.copyfile(_file(repo, weights, revision, access, MAX_WEIGHT_BYTES), folder / weights)


def _newest(repo: str, access: Access) -> str:
    """The tag of the newest version; without one, the newest commit of main."""
    return newest_version(_cached_refs(repo, access) if _is_offline(access) else _tags(repo, access)) or MAIN


def _is_offline(access: Access) -> bool:
    from huggingface_hub.constants import is_offline_mode

    return access.local_files_only or network_ruled_out() or is_offline_mode()


def _tags(repo: str, access: Access) -> list[str]:
    errand = Errand(repo, instead="give a revision", fields={"source": f"hf://{repo}"})
    refs = answered(errand, ANSWER_SECONDS, lambda: _api(access).list_repo_refs(repo))
    return [tag.name for tag in refs.tags]


def _api(access: Access) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(token=access.token, library_name="tchub")


def _cached_refs(repo: str, access: Access) -> list[str]:
    """The revisions that the Hub's cache knows by name."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(access.cache_dir or HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "refs"
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _file(repo: str, name: str, revision: str, access: Access, limit: int) -> Path:
    """A file in the Hub's cache; one that is larger than any checkpoint's is refused before a byte is fetched."""
    api = _api(access)
    where: dict[str, Any] = {"revision": revision, "cache_dir": access.cache_dir}
    where["local_files_only"] = _is_offline(access)
    fields = {"source": f"hf://{repo}", "file": name}
    errand = Errand(repo, name, revision, offline=_is_offline(access), fields=fields)
    size = answered(errand, ANSWER_SECONDS, lambda: api.hf_hub_download(repo, name, dry_run=True, **where).file_size)
    if size is not None and size > limit:
        raise IntegrityError(
            f"{name} of {repo} has {size:,} bytes, more than any checkpoint's",
            remedy="it is no checkpoint of tchub; check the repository's name",
            outcome="size-mismatch",
            path=f"hf://{repo}/{name}",
        )
    where["force_download"] = access.force_download
    seconds = ANSWER_SECONDS + (limit if size is None else size) / SLOWEST
    return Path(answered(errand, seconds, lambda: api.hf_hub_download(repo, name, **where)))
