"""`from_pretrained` for every network of the zoo, as huggingface_hub's `ModelHubMixin` has it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin
from huggingface_hub.constants import is_offline_mode

from ...cards import render_card
from ...zoo.models import Checkpoint
from ...zoo.models.checkpoint import MAX_WEIGHT_BYTES
from ...zoo.models.config import MAX_CONFIG_BYTES
from .entry import Version
from .errors import CheckpointNameError
from .files import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from .network import ANSWER_SECONDS, SLOWEST, ask_hub, network_ruled_out, require_size
from .registry import find_checkpoint

MAIN = "main"


class PretrainedModel(Checkpoint, ModelHubMixin, library_name="tchub", pipeline_tag="tabular-regression", tags=["tvm"]):
    """A checkpoint that goes to the Hub and comes from there: it scores programs, whatever its network is.

    `push_to_hub` is the mixin's own: it commits config, weights and a card without scores, no schedules, checks nothing
    and tags nothing. What others shall pull by name goes out by `tchub publish`.
    """

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Return a published checkpoint, audited before a tensor is read, its network in evaluation mode.

        Args:
            pretrained_model_name_or_path: `org/name` on the Hub, a folder, or a checkpoint's name such as `tcl-epyc`.
            revision: of a repository: a tag, a commit or a branch. None for its newest tagged version; main where
                nothing is tagged.
            force_download, token, cache_dir, local_files_only: as of `huggingface_hub.hf_hub_download`.

        Raises:
            CheckpointError: the files are damaged or do not fit each other; a subclass for each way.
            SourceError, IntegrityError: the Hub does not give it, or something larger than a checkpoint.
            TchubError: a subclass for each way in which a name can fail, see `tchub.hub.pull`.
        """
        name = pretrained_model_name_or_path
        offline = local_files_only or network_ruled_out() or is_offline_mode()
        if isinstance(name, str) and name.count("/") == 1 and not Path(name).is_dir():
            options = {"token": token, "cache_dir": cache_dir, "local_files_only": offline}
            return cls.load(_snapshot(name, revision, options, force_download))  # pyright: ignore[reportReturnType]
        if revision is not None:
            remedy = "leave revision out; the version of a name is written NAME@X.Y.Z"
            raise CheckpointNameError(f"{name} has no revisions", remedy=remedy, revision=revision)
        return cls.load(find_checkpoint(name, offline=offline))  # pyright: ignore[reportReturnType]

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write config.json, the weights, and the card that both give, without schedules and scores."""
        lineage = {key: value for key, value in self.config.lineage.items() if key != "schedules"}
        config = replace(self.config, lineage=lineage)
        Checkpoint(config, self.model, self.device).save(save_directory)
        (save_directory / CARD_FILE).write_text(render_card(asdict(config), {}), encoding="utf-8")


def newest_version(tags: Iterable[str]) -> str | None:
    """Return the newest of the tags that are versions, `vX.Y.Z`."""
    versions: list[Version] = []
    for tag in tags:
        with suppress(CheckpointNameError):
            versions += [Version.parse(tag[1:])] if tag.startswith("v") else []
    return f"v{max(versions)}" if versions else None


def _snapshot(repo: str, revision: str | None, options: dict[str, Any], force: bool) -> Path:
    """Return the Hub cache's folder of a revision; files larger than a checkpoint's are refused before a byte."""
    from huggingface_hub import snapshot_download

    commit = revision or newest_version(_tags(repo, options)) or MAIN
    options |= {"revision": commit}
    limits = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: MAX_WEIGHT_BYTES}
    about: dict[str, Any] = {"revision": commit, "offline": options["local_files_only"]}
    for file, limit in limits.items():
        require_size(repo, file, limit, options, **about)
    options |= {"force_download": force, "allow_patterns": list(limits), "library_name": "tchub"}
    seconds = 2 * ANSWER_SECONDS + sum(limits.values()) / SLOWEST
    return Path(ask_hub(repo, lambda: snapshot_download(repo, **options), seconds, **about))


def _tags(repo: str, options: dict[str, Any]) -> list[str]:
    """Return the names of a repository's tags; offline the revisions that the Hub's cache knows by name."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    if options["local_files_only"]:
        cache = Path(options["cache_dir"] or HF_HUB_CACHE)
        folder = cache / repo_folder_name(repo_id=repo, repo_type="model") / "refs"
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []
    api = HfApi(token=options["token"], library_name="tchub")
    refs = ask_hub(repo, lambda: api.list_repo_refs(repo), alternative="give a revision")
    return [tag.name for tag in refs.tags]
