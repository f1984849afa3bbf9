"""`TCL.from_pretrained("org/name")`: every network of the zoo as huggingface_hub's `ModelHubMixin` has it.

The classes are made when they are first asked for, one for each network of the registry, with its name: `TCL`,
`TileNet`, `ATFormer`, `TCLKB` for a knowledge base, `TCLCommittee` for a committee. Trees have none; `hub.load` loads
them.
"""

from __future__ import annotations

import types
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from huggingface_hub import ModelHubMixin

from ...cards import render_card
from ...zoo.errors import TchubError
from ...zoo.models import (
    Checkpoint,
    CostModel,
    get_architecture,
    list_architectures,
    list_committees,
    list_knowledge_bases,
)
from ...zoo.models.registry import Architecture
from .pretrained_source import Access, find_checkpoint

if TYPE_CHECKING:
    from typing import Self

    from ...zoo.devices import Device
    from ...zoo.models import CheckpointConfig


class WrongArchitectureError(TchubError):
    """The checkpoint is of another architecture than the class. Fields: `arch`, `found`."""


class NoFactsError(TchubError):
    """A network that no checkpoint was loaded into has no name, features or family to be saved with."""


class PretrainedNetwork(ModelHubMixin, library_name="tchub", pipeline_tag="tabular-regression", tags=["tvm"]):
    """What the networks of `tchub.hub` have besides what those of `tchub.zoo.models` have.

    `push_to_hub` is the mixin's own: it commits config, weights and a card without scores, checks nothing and tags
    nothing. What others shall pull by name goes out by `tchub publish`.
    """

    arch: ClassVar[str]
    _facts: tuple[CheckpointConfig, Device] | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """This network with what is told about it: scores programs, and is what `tvm_cost_model` takes.

        Raises:
            NoFactsError: no checkpoint was loaded into it.
        """
        if self._facts is None:
            raise NoFactsError(
                f"this {type(self).__name__} was made, not loaded: it has no name, features or family",
                remedy="save it by zoo.models.Checkpoint(config, network, device).save(folder)",
            )
        config, device = self._facts
        assert isinstance(self, CostModel)
        return Checkpoint(config, self, device)

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
        """A published network, audited before a tensor is read, in evaluation mode.

        Args:
            pretrained_model_name_or_path: `org/name` on the Hub, a folder, or a checkpoint's name such as `tcl-epyc`.
            revision: of a repository: a tag, a commit or a branch. None for its newest tagged version; main where
                nothing is tagged.
            force_download, token, cache_dir, local_files_only: as of `huggingface_hub.hf_hub_download`.

        Raises:
            WrongArchitectureError: it is of another architecture.
            CheckpointError: the files are damaged or do not fit each other; a subclass for each way.
            SourceError: the Hub does not give it; a subclass for each way.
        """
        access = Access(revision, token, cache_dir, force_download, local_files_only)
        with TemporaryDirectory(prefix="tchub-") as scratch:
            loaded = Checkpoint.load(find_checkpoint(pretrained_model_name_or_path, Path(scratch), access))
        if loaded.config.arch != cls.arch:
            raise WrongArchitectureError(
                f"{pretrained_model_name_or_path} is a {loaded.config.arch}, not a {cls.arch}",
                remedy=f"use {_class_of(loaded.config.arch)}, or tchub.hub.load for any",
                arch=cls.arch,
                found=loaded.config.arch,
            )
        network = cls(loaded.model.config)  # pyright: ignore[reportCallIssue]  (a CostModel's, in every subclass)
        assert isinstance(network, CostModel)
        network.load_state_dict(loaded.model.state_dict())
        network._facts = (loaded.config, loaded.device)
        return network.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """config.json, the weights, and the card that both give; scores are of weights that were judged."""
        checkpoint = self.checkpoint
        checkpoint.save(save_directory)
        text = render_card(asdict(checkpoint.config), {})
        (save_directory / "README.md").write_text(text, encoding="utf-8")


def _make(architecture: Architecture) -> type[PretrainedNetwork]:
    """The class of one network."""
    facts = {"__module__": __name__, "__doc__": architecture.model.__doc__}
    bases = (PretrainedNetwork, architecture.model)
    return types.new_class(architecture.model.__name__, bases, exec_body=lambda namespace: namespace.update(facts))


def _class_of(arch: str) -> str:
    """Its class here, or in words that there is none."""
    architecture = get_architecture(arch)
    return f"tchub.hub.{architecture.model.__name__}" if architecture.weights == "safetensors" else "tchub.hub.load"


def _networks() -> dict[str, Architecture]:
    """Class name -> network."""
    known = map(get_architecture, (*list_architectures(), *list_knowledge_bases(), *list_committees()))
    return {one.model.__name__: one for one in known if one.weights == "safetensors"}


def __getattr__(name: str) -> Any:
    networks = _networks()
    if name not in networks:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _make(networks[name])
    return made


def __dir__() -> list[str]:
    return sorted([*globals(), *_networks()])
