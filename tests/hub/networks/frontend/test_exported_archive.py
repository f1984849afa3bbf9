"""A `.pt2` file that would run code, fill the memory, or is of another version is refused before PyTorch loads it."""

import json
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from relax_kit import compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.exported_archive import check_archive
from tchub.hub.networks.frontend.exported_file import load_exported
from tchub.hub.networks.rivals import ReferenceNetwork
from tchub.hub.networks.sources import open_network
from tiny_network import Touch

from scripts.fuzz.limits import limited

Change = Callable[[dict[str, bytes]], None]


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    batch = torch.export.Dim("batch", min=1, max=8)
    torch.export.save(torch.export.export(Scaled().eval(), (torch.randn(2, 4),), dynamic_shapes=({0: batch},)), path)
    return path


def rewritten(saved: Path, path: Path, change: Change, compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive with its records changed; names are below its root folder."""
    with zipfile.ZipFile(saved) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(records)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(f"net/{name}", content)
    return path


def in_json(record: str, change: Callable[[Any], None]) -> Change:
    def apply(records: dict[str, bytes]) -> None:
        value = json.loads(records[record])
        change(value)
        records[record] = json.dumps(value).encode()

    return apply


def in_graph(change: Callable[[Any], None]) -> Change:
    return in_json("models/model.json", change)


def first_node(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"][0]


class Quantised(torch.nn.Module):
    """Weights of int8 with a scale for each row, activations with those of their values, and a token's own."""

    def __init__(self) -> None:
        super().__init__()
        import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(-128, 128, (6, 4), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(6) / 64)
        self.register_buffer("groups", torch.rand(6, 2) / 64)

    def forward(self, x: torch.Tensor) -> Any:
        q, int8 = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
        fixed = q.dequantize_per_tensor(q.quantize_per_tensor(x, 0.05, 3, *int8), 0.05, 3, *int8)
        rows = q.dequantize_per_channel(self.weight, self.scales, None, 0, *int8)
        grouped = q.quantize_per_channel_group(self.weight.float(), self.groups * 64, self.groups.int(), *int8, 2)
        groups = q.dequantize_per_channel_group(grouped, self.groups, None, *int8, 2, torch.float32)
        results = [fixed @ rows.T, fixed @ groups.T]
        for choose in (q.choose_qparams, q.choose_qparams_symmetric):
            own = choose.tensor(x, -128, 127, 1e-5, torch.int8)
            results.append(q.dequantize_per_tensor.tensor(q.quantize_per_tensor.tensor(x, *own, *int8), *own, *int8))
        for choose in (q.choose_qparams_per_token, q.choose_qparams_per_token_asymmetric):
            own = choose(x, torch.int8)
            results.append(q.dequantize_per_token(q.quantize_per_token(x, *own, *int8), *own, *int8, torch.float32))
        whole = torch._int_mm(results[0].round().to(torch.int8), self.weight.repeat(1, 2))
        return *results, q.quantize_per_channel(x, self.scales, torch.arange(6), 0, *int8), whole


def test_a_quantised_program_is_computed_on_real_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    torch.export.save(torch.export.export(Quantised(), (x,)), tmp_path / "net.pt2")
    results = compute(prepare(open_network(tmp_path / "net.pt2").imported()), x)
    expected = Quantised()(x)
    for result, one in zip(results, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(result), one)
    torch.save([x], tmp_path / "inputs.pt")
    request = {"reference": str(tmp_path / "net.pt2"), "inputs": str(tmp_path / "inputs.pt")}
    exact = ReferenceNetwork(request).exact()
    torch.testing.assert_close(torch.from_numpy(exact[0]), expected[0].double(), rtol=1e-5, atol=1e-6)


class Resized(torch.nn.Module):
    """Sizes with products, powers and fractions."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flatten(), torch.nn.functional.interpolate(x[..., 0], scale_factor=1.5)


def test_a_file_of_torch_export_save_and_sizes_that_pytorch_computes_pass(saved: Path, tmp_path: Path) -> None:
    assert load_exported(saved).module()(torch.randn(3, 4)).shape == (3, 4)
    side, x = torch.export.Dim("side", min=4, max=64), torch.randn(2, 3, 8, 8)
    axes = {0: torch.export.Dim("batch", max=16), 2: side, 3: side}
    torch.export.save(torch.export.export(Resized(), (x,), dynamic_shapes=(axes,)), tmp_path / "net.pt2")
    flat, larger = load_exported(tmp_path / "net.pt2").module()(x)
    assert (flat.shape, larger.shape) == ((2 * 3 * 8 * 8,), (2, 3, 12))


WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


def pickled(name: str) -> dict[str, Any]:
    return {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}


@pytest.mark.parametrize(
    ("record", "content", "config", "change", "message"),
    [
        ("data/weights/weight_0", lambda harm: harm, WEIGHTS,
         lambda config: config["layer.weight"].update(use_pickle=True), "its weight 'layer.weight' is pickled"),
        ("data/sample_inputs/model.pt", lambda harm: ((harm,), {}), WEIGHTS, dict, "its example inputs"),
        ("data/constants/custom_obj_0", lambda harm: harm, CONSTANTS,
         lambda config: config.update(evil=pickled("custom_obj_0")), ""),
        ("data/constants/opaque_obj_0", lambda harm: harm, CONSTANTS,
         lambda config: config.update(evil=pickled("opaque_obj_0")), ""),
    ],
)  # fmt: skip
def test_a_pickle_in_the_archive_is_never_loaded(
    saved: Path, tmp_path: Path, record: str, content: Any, config: str, change: Any, message: str
) -> None:
    mark = tmp_path / "mark"
    torch.save(content(Touch(mark)), tmp_path / "harm.pt")

    def poison(records: dict[str, bytes]) -> None:
        in_json(config, lambda body: change(body["config"]))(records)
        records[record] = (tmp_path / "harm.pt").read_bytes()

    with pytest.raises(NetworkImportError, match=f"would run code: ?.*{message}") as caught:
        open_network(rewritten(saved, tmp_path / "net.pt2", poison))
    assert caught.value.remedy
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/aotinductor/model/wrapper.so", "would run code"),
        ("models/second.json", "more than one exported program"),
        ("Models/Model.JSON", "two records of one name"),
        ("version", "older, and pickled"),
        ("data.pkl", "pickled file of torch.save"),
    ],
)
def test_records_that_no_plain_network_has_are_refused(saved: Path, tmp_path: Path, name: str, message: str) -> None:
    def add(records: dict[str, bytes]) -> None:
        records[name] = b"{}"

    with pytest.raises(NetworkImportError, match=message):
        open_network(rewritten(saved, tmp_path / "net.pt2", add))


def _set(key: str, value: Any) -> Callable[[Any], None]:
    return lambda program: program.__setitem__(key, value)


def _target(name: str) -> Callable[[Any], None]:
    return lambda program: first_node(program).__setitem__("target", name)


def _placeholder(program: Any) -> None:
    program["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"] = "x=__import__('os').system('touch /tmp/x')"


def _expression(text: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        for facts in program["graph_module"]["graph"]["tensor_values"].values():
            for size in facts["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = text

    return change


def _tree(kind: str, context: str = "null") -> Callable[[Any], None]:
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])

    def change(program: Any) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = spec

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (_target(name), f"calls '{name}', which is no operator")
            for name in ("torch.os.system", "torch.ops.aten.from_file.default", "torch.ops.image.write_file.default")
        ),
        (_placeholder, "is no name"),
        (_expression("__import__('os').system('touch /tmp/x')"), "is no size"),
        (_expression("Pow(Integer(9), Pow(Integer(9), Integer(9)))"), "is no size"),
        (_expression("1" * 30_000), "is no size"),  # which would take forever to read
        (_tree("collections.defaultdict", '{"default_factory_module": "antigravity"}'), "takes or gives an object"),
        (_tree("builtins.dict", '[{"__enum__": true, "fqn": "antigravity:X", "name": "y"}]'), "would import code"),
        (_set("schema_version", {"major": 99, "minor": 1}), r"saved by a newer PyTorch \(2.13"),
        (_set("schema_version", {"major": 8, "minor": 999}), "saved by a newer PyTorch"),
        (_set("schema_version", {"major": 1, "minor": 1}), "saved by an older PyTorch"),
        (_set("schema_version", None), "is damaged"),
    ],
)
def test_texts_that_pytorch_would_evaluate_are_refused(
    saved: Path, tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    with pytest.raises(NetworkImportError, match=message) as caught:
        open_network(rewritten(saved, tmp_path / "net.pt2", in_graph(change)))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_guards_are_python_source_and_are_left_out(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    guard = f"__import__('os').system('touch {mark}') == 0"
    path = rewritten(saved, tmp_path / "net.pt2", in_graph(_set("guards_code", [guard])))
    load_exported(path).module()(torch.randn(2, 4))
    assert not mark.exists()


def _weight(content: bytes | None, **meta: Any) -> Change:
    def change(records: dict[str, bytes]) -> None:
        in_json(WEIGHTS, lambda body: body["config"]["layer.weight"]["tensor_meta"].update(meta))(records)
        if content is not None:
            records["data/weights/weight_0"] = content

    return change


WIDE = _weight(None, sizes=[{"as_int": 1 << 20}] * 2, strides=[{"as_int": 0}] * 2)


@pytest.mark.parametrize(
    ("compression", "change", "message"),
    [
        (zipfile.ZIP_STORED, WIDE, "GB of memory"),
        (zipfile.ZIP_DEFLATED, _weight(bytes(10_000_000)), "could fill the memory"),
        (zipfile.ZIP_STORED, _weight(b"", sizes=[{"as_int": 1 << 40}]), "a weight without data"),
    ],
    ids=["wide", "bomb", "empty"],
)
def test_records_that_would_fill_the_memory_are_refused(
    saved: Path, tmp_path: Path, compression: int, change: Change, message: str
) -> None:
    with pytest.raises(NetworkImportError, match=message):
        open_network(rewritten(saved, tmp_path / "net.pt2", change, compression))


def test_example_inputs_of_a_few_bytes_that_would_fill_the_memory_are_refused(saved: Path, tmp_path: Path) -> None:
    many: Any = torch.ones(2, 4)
    for _ in range(40):
        many = (many, many)
    torch.save(many, tmp_path / "many.pt")
    zeros = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x04\x85R."  # a bytearray of 64 MiB
    torch.save(torch.ones(1), tmp_path / "one.pt")
    with zipfile.ZipFile(tmp_path / "one.pt") as old, zipfile.ZipFile(tmp_path / "zeros.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, zeros if name.endswith("data.pkl") else old.read(name))
    for name, message in (("many", "more than 100000 example inputs"), ("zeros", "its example inputs are pickled")):
        record = {"data/sample_inputs/model.pt": (tmp_path / f"{name}.pt").read_bytes()}
        path = rewritten(saved, tmp_path / "net.pt2", lambda records, record=record: records.update(record))
        with limited(1 << 30, 20), pytest.raises(NetworkImportError, match=message):
            check_archive(path)


def test_a_file_cut_short_or_of_another_kind_is_said(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "half.pt2").write_bytes(saved.read_bytes()[:2000])
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt2")
    with pytest.raises(NetworkImportError, match="cut short"):
        open_network(tmp_path / "half.pt2")
    with pytest.raises(NetworkImportError, match=r"a pickled file of torch.save"):
        open_network(tmp_path / "weights.pt2")
