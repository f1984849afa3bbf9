"""Device families: their data files, the hardware row, names, targets, and what fits what."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.devices import Device, UnknownDeviceError, distance, get_device, list_devices
from tchub.zoo.errors import TchubError

ALL = list_devices()
SHEET = get_device("epyc-turin").to_dict()["spec"]
every_device = pytest.mark.parametrize("device", ALL, ids=lambda device: device.name)


@every_device
def test_each_number_has_a_source_and_an_unknown_one_says_why(device: Device) -> None:
    for name, value in device.spec.values().items():
        source = device.spec.sources[name]
        says_unknown = source.startswith(("unknown: ", "not supported: "))
        assert (value is None) == says_unknown, f"{name}: {value} from {source!r}"


@pytest.mark.parametrize("device", list_devices("gpu"), ids=lambda d: d.name)
def test_gpu_numbers_agree_with_each_other(device: Device) -> None:
    """Peak FP32 is cores x boost clock x 2, bandwidth is bus x data rate: a slip in either column shows."""
    spec = {name: value or 0.0 for name, value in device.spec.values().items()}
    assert spec["fp32_tflops"] == pytest.approx(spec["cuda_cores"] * spec["boost_mhz"] * 2e-6, rel=0.02)
    bandwidth = spec["memory_bus_bits"] / 8 * spec["memory_clock_mhz"] * 2e-3
    assert spec["memory_bandwidth_gbs"] == pytest.approx(bandwidth, rel=0.01)


@pytest.mark.parametrize("device", list_devices("cpu"), ids=lambda d: d.name)
def test_cpu_numbers_agree_with_each_other(device: Device) -> None:
    spec = {name: value or 0.0 for name, value in device.spec.values().items()}
    assert spec["threads"] / spec["cores"] in (1, 2)
    assert spec["turbo_ghz"] <= spec["boost_ghz"]
    assert device.target["num-cores"] == spec["cores"]


@every_device
def test_tvm_accepts_the_target(device: Device) -> None:
    tvm = pytest.importorskip("tvm")
    target = tvm.target.Target(device.target)
    assert target.kind.name == {"cpu": "llvm", "gpu": "rocm" if device.vendor == "amd" else "cuda"}[device.kind]
    for name, value in device.target.items():
        if name != "kind":
            assert target.attrs[name] == value


@every_device
def test_hardware_row_is_finite_and_small_and_marks_the_unknown(device: Device) -> None:
    row = device.hardware_row()
    assert row.dtype == np.float32
    assert row.shape == ((22,) if device.kind == "cpu" else (20,))
    assert np.isfinite(row).all()
    assert 0 <= row.min() < row.max() <= 3.5
    known = [value is not None for value in device.spec.values().values()]
    if device.kind == "cpu":
        assert row[11:].tolist() == [float(k) for k in known]
        assert all(row[i] == 0 for i in range(11) if not known[i])
    else:
        assert row[12:].sum() == sum(known) - 4


def test_the_roofline_of_a_sheet_by_hand() -> None:
    """On the CPU 32 bytes are 8 numbers, each multiplied and added twice."""
    cpu, card = get_device("epyc-7452"), get_device("v100")
    assert cpu.roofline(2) == (2 * 3.35e9 * 32, 2 * 3.35e9 * 32)
    assert cpu.roofline() == cpu.roofline(32)
    assert card.roofline() == card.roofline(2) == (15.7e12, 900e9)
    unknown = cpu.spec.with_values({"simd_bytes": None}, "unknown: a test")
    assert replace(cpu, spec=unknown).roofline(2) is None


@every_device
def test_json_round_trip(device: Device) -> None:
    assert Device.from_dict(json.loads(json.dumps(device.to_dict()))) == device


@given(st.sampled_from(ALL), st.data())
def test_a_device_with_a_field_missing_is_refused(device: Device, data: st.DataObject) -> None:
    broken = device.to_dict()
    name = data.draw(st.sampled_from(sorted(broken)))
    del broken[name]
    with pytest.raises(TchubError, match=name):
        Device.from_dict(broken)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "tpu"}, "kind"),
        ({"name": 3}, "name"),
        ({"aliases": "epyc"}, "aliases"),
        ({"target": {"mcpu": "znver5"}}, "no kind"),
        ({"spec": {}}, "cores"),
        ({"format": 99}, "has format 99"),
        ({"colour": "red"}, "colour"),
        *(({"spec": SHEET | {"cores": {"value": v, "source": "x"}}}, "spec") for v in (-1, "3", True, float("inf"))),
        *(({"spec": SHEET | {"cores": e}}, "spec") for e in ({"value": 3, "source": ""}, {"value": 3}, 3)),
        ({"spec": SHEET | {"corse": {"value": 3, "source": "x"}}}, "corse"),
    ],
)
def test_a_device_with_a_wrong_field_is_refused(change: dict, match: str) -> None:
    with pytest.raises(TchubError, match=match) as caught:
        Device.from_dict(get_device("epyc-turin").to_dict() | change)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("EPYC_Turin", "epyc-turin"),
        ("epyc", "epyc-turin"),
        ("Xeon E5-2673 v4", "xeon-e5-2673"),
        ("2080Ti", "rtx2080ti"),
        ("a72", "graviton1"),
    ],
)
def test_names_and_aliases(name: str, device: str) -> None:
    assert get_device(name).name == device


def test_no_two_devices_share_a_name() -> None:
    taken = [n for d in ALL for n in (d.name, *d.aliases)]
    assert len(taken) == len(set(taken))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        get_device("epyc-turim")
    assert caught.value.fields["nearest"][0] == "epyc-turin"
    assert "epyc-turin" in caught.value.message


def test_the_order_of_fits() -> None:
    turin = get_device("epyc-turin")
    order = ["epyc-turin", "epyc-genoa", "epyc-7452", "ryzen-3700x", "xeon-8272cl", "graviton2", "t4"]
    found = [distance(turin, get_device(n)) for n in order]
    assert found == sorted(found)
    assert [f.rank for f in found] == [0, 1, 1, 2, 3, 4, 5]


@given(st.sampled_from(ALL), st.sampled_from(ALL))
def test_distance_is_symmetric_and_never_mixes_cpu_and_gpu(a: Device, b: Device) -> None:
    there, back = distance(a, b), distance(b, a)
    assert (there.rank, there.gap) == (back.rank, back.gap)
    assert (there.rank == 5) == (a.kind != b.kind)
    assert (there.rank == 0) == (a.name == b.name)
    assert there.reason
