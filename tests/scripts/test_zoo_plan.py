"""What the plan of the zoo makes, and where."""

from __future__ import annotations

from scripts.zoo.plan import bases, jobs, read_plan

PLAN = read_plan()


def test_a_version_is_of_an_architecture_and_each_is_trained_in_a_folder_of_its_own() -> None:
    """A new recipe of one architecture leaves the others' checkpoints what they are."""
    versions = {job.arch: job.version for job in jobs(PLAN)}
    assert {arch for arch, version in versions.items() if version != "1.0.0"} == {"tilenet", "atformer"}
    assert {(base.settings["arch"], base.version) for base in bases(PLAN)} == {("tilenet", "1.1.0"), ("tcl", "1.0.0")}
    (job,) = jobs(PLAN, families=("k80",), archs=("tilenet",))
    assert job.folder(2).parts[-3:] == ("tilenet-k80", "1.1.0", "2")
