"""A card as a device: what it is, what refuses it, and what its options are."""

from pathlib import Path

import pytest
from paper_card import PaperCard
from tchub.hub.device import cuda_compile
from tchub.hub.device.device_choice import checkpoint_kind, choose_device, fitting_checkpoint
from tchub.hub.device.errors import DeviceError
from tchub.zoo.devices import get_device


def test_a_known_card_has_its_sheet_and_the_target_of_its_driver(card: PaperCard) -> None:
    device = choose_device("cuda")
    assert (device.card, device.name, device.options) == (0, "cuda:0", ["--device", "cuda:0"])
    assert device.facts.device == get_device("t4")
    assert device.facts.target == get_device("t4").target, "the driver's limits are those of the sheet"
    assert device.facts.exact
    assert device.facts.cpu_model == "Tesla T4"
    assert (fitting_checkpoint(device) or "").partition("@")[0].endswith("-t4")


def test_an_unknown_card_has_the_nearest_sheet_with_what_its_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PaperCard.install(tmp_path, monkeypatch, "NVIDIA L4", 89)
    facts = choose_device("cuda:0").facts
    assert not facts.exact
    assert facts.target["arch"] == "sm_89"
    values = facts.device.spec.values()
    assert (values["cuda_cores"], values["memory_bus_bits"], values["boost_mhz"]) == (132 * 128, 256, 1980)
    assert values["memory_bandwidth_gbs"] == pytest.approx(320, rel=1e-3)
    assert facts.device.spec.sources["fp16_tflops"].startswith("stands in: ")
    assert "nearest" in facts.reasons[0]


def test_local_is_the_card_where_there_is_one_and_nothing_asks_for_the_cpu(card: PaperCard) -> None:
    assert choose_device("local").name == "cuda:0"
    for options in ({"threads": 1}, {"target": {"kind": "llvm"}}, {"kind": "cpu"}, {"device": "cpu"}):
        assert choose_device(**options).facts.target["kind"] == "llvm", options


def test_local_is_the_cpu_where_the_card_cannot_be_used_and_says_why(card: PaperCard) -> None:
    card.becomes("private")
    device = choose_device("local")
    assert device.name is None
    assert "the CPU, and not the card: cuda:0 (Tesla T4) takes one process only" in device.facts.reasons[-1]
    with pytest.raises(DeviceError, match="one process only"):
        choose_device("local", kind="gpu")


def test_the_kind_of_a_checkpoint_is_known_without_its_files() -> None:
    assert [checkpoint_kind(name) for name in ("tilenet-t4", "tcl-epyc@1.0.0", "no/folder", None)] == [
        *("gpu", "cpu", None, None)
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("lost", "CUDA_ERROR_UNKNOWN"),
        ("mig", "slice of a card"),
        ("prohibited", "takes no programs"),
        ("private", "one process only"),
        ("old", r"for CUDA 12\.4, and nvcc is of CUDA 13\.0"),
    ],
)
def test_a_card_that_cannot_be_used_is_refused_with_a_remedy(card: PaperCard, state: str, message: str) -> None:
    card.becomes(state)
    with pytest.raises(DeviceError, match=message) as caught:
        choose_device("cuda")
    assert caught.value.remedy


def test_a_card_that_nvcc_has_dropped_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PaperCard.install(tmp_path, monkeypatch, "Tesla V100-PCIE-16GB", 70)
    with pytest.raises(DeviceError, match="nvcc does not compile for sm_70") as caught:
        choose_device("cuda")
    assert "sm_75" in caught.value.remedy


def test_a_card_that_is_not_there_is_refused(card: PaperCard) -> None:
    with pytest.raises(DeviceError, match="the driver shows 1, and number 1 was asked for"):
        choose_device("cuda:1")


def test_a_machine_without_a_driver_or_a_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: PaperCard
) -> None:
    monkeypatch.delenv("TCHUB_NVCC")
    monkeypatch.setattr(cuda_compile, "_nvrtc", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="no nvcc and no NVRTC") as caught:
        choose_device("cuda")
    assert "tchub[cuda]" in caught.value.remedy
    monkeypatch.setenv("TCHUB_LIBCUDA", str(tmp_path / "libcuda.so.1"))
    with pytest.raises(DeviceError, match="the CUDA driver cannot be loaded"):
        choose_device("cuda")


def test_a_card_of_amd_is_refused_with_what_is_here() -> None:
    for device, message in (("rocm", "of AMD"), ("rocm:99", "cards of AMD, and number 99 was asked for")):
        with pytest.raises(DeviceError, match=message) as caught:
            choose_device(device)
        assert "--device cuda or cpu" in caught.value.remedy


def test_options_of_cpus_are_refused() -> None:
    with pytest.raises(DeviceError, match="--threads, --target, --linker is an option of CPUs"):
        choose_device("cuda", 2, target={"kind": "cuda"}, linker="ld")
