"""A checkpoint that is trained in seconds and may be published, and the people who publish and fetch it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_corpora import RECIPE, make_corpus
from hub_client import environment
from hub_protocol import HubServer
from tchub.hub.publishing.publish import PublishConfig, PublishResult, publish

REPO, INDEX = "lab/tcl-epyc", "tchub/index"
TCHUB = [sys.executable, "-c", "import sys; from tchub.hub.cli import main; sys.exit(main())"]


def train(folder: Path) -> tuple[Path, Path]:
    """Train TCL on a tiny corpus, and tell what no file can.

    Returns:
        The checkpoint's folder, as training leaves it, and the corpus.
    """
    from tchub.hub.cli import main

    corpus = make_corpus(folder / "on-epyc", "epyc", 0)
    (folder / "recipe.yaml").write_text(RECIPE)
    run = folder / "run"
    assert main(["train", str(folder / "recipe.yaml"), "--corpus", str(corpus), "--out", str(run), "--quiet"]) == 0
    config, metrics = (json.loads((run / name).read_text()) for name in ("config.json", "metrics.json"))
    config["lineage"] |= {"weights_licence": "Apache-2.0", "authors": "Ada"}
    config["training"]["corpus"]["how"] = "latencies made up for tests"
    metrics["results"]["random"] = {"top1": 0.3, "top5": 0.9, "pairwise": 0.5}
    (run / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (run / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    return run, corpus


@dataclass(frozen=True)
class Person:
    """Someone on a machine of their own: a home folder, a token or none, and the tests' Hub."""

    hub: HubServer
    home: Path
    token: str = ""

    def run(self, *args: object, **variables: str) -> tuple[int, dict[str, Any], str]:
        """A tchub command with --json, in a process of its own: its exit code, its data, and what it said besides."""
        argv, env = [*TCHUB, *map(str, args), "--json"], environment(self.hub, self.home, self.token) | variables
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@dataclass(frozen=True)
class Desk:
    """Someone who publishes from this very process: the checkpoint, its corpus, and whose token is used."""

    hub: HubServer
    checkpoint: Path
    corpus: Path

    def publish(self, repo: str, **options: Any) -> PublishResult:
        """`publish`, with the corpus."""
        return publish(self.checkpoint, repo, corpora=[self.corpus], config=PublishConfig(**options))

    def change(self, **metrics: Any) -> None:
        """Other bytes of the same version, which still pass the check."""
        path = self.checkpoint / "metrics.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | metrics, indent=2) + "\n")
