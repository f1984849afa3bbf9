"""Tensor cores: design spaces of float16 tasks, their programs as decisions and features, and their machine code."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from paper_card import PaperCard
from tchub.hub.device.candidate import trace_json
from tchub.hub.device.cuda_compile import compile_cuda, find_compiler, tensor_core_programs
from tchub.hub.device.onsite.cuda import CudaDriver, CudaProgram
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.tasks import TuningTask, make_task
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.design_slots import TileSlot
from tchub.hub.search.design_space import DesignSpace
from tchub.hub.search.errors import TuningError
from tchub.hub.search.settings import SearchSettings
from tchub.hub.search.tensor_cores import check_precision
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.features.skeleton import Skeleton
from tchub.zoo.primitives.metaschedule import from_trace_json
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_equal

WMMA = {"wmma_sync_16x16x16_f16f16f32", "wmma_sync_16x16x16_f16f16f32_trans"}
MMA = {"mma_sync_m16n8k8_f16f16f32"}


def target(arch: str) -> dict[str, Any]:
    return get_device("t4").target | {"arch": arch}


def product(rows: int, columns: int, inner: int) -> TuningTask:
    """A product of float16 matrices, added up in float32 and rounded, as a layer of a network in mixed precision."""
    a, b = te.placeholder((rows, inner), "float16", "a"), te.placeholder((inner, columns), "float16", "b")
    k = te.reduce_axis((0, inner), "k")

    def total_of(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    total: Any = te.compute((rows, columns), total_of, name="total")
    out: Any = te.compute((rows, columns), lambda i, j: total[i, j].astype("float16"), name="rounded")
    function = te.create_prim_func([a, b, out]).with_attr("global_symbol", "main")
    return make_task(tvm.IRModule({"main": function}), "dense")


@pytest.fixture(scope="module")
def task() -> TuningTask:
    return product(64, 64, 64)


def spaces(task: TuningTask, arch: str) -> dict[str, DesignSpace]:
    """Design spaces by the instruction that computes."""
    context = tune_context(task, tvm.target.Target(target(arch)), "replay-trace", 0)
    spaces = {}
    for schedule in context.generate_design_space():
        annotated = [inst for inst in schedule.trace.insts if inst.kind.name == "Annotate"]
        names = [str(i.inputs[1]) for i in annotated if str(i.attrs[0]) == "meta_schedule.auto_tensorize"]
        spaces[names[0] if names else "scalar"] = DesignSpace(task.mod, context.space_generator.postprocs, schedule)
    return spaces


def programs(space: DesignSpace, count: int) -> list[tuple[Any, Any]]:
    """Random programs, the decisions and the candidate of each."""
    replayed = ((decisions, space.replay(decisions)) for decisions in space.random(Random(0), 200))
    valid = ((decisions, candidate) for decisions, candidate in replayed if candidate is not None)
    return [pair for pair, _ in zip(valid, range(count), strict=False)]


@pytest.mark.parametrize(
    ("arch", "instructions"),
    [("sm_37", {"scalar"}), ("sm_70", WMMA), ("sm_75", WMMA), ("sm_80", WMMA | MMA), ("sm_90", WMMA | MMA)],
)
def test_a_card_has_the_instructions_of_its_generation(task: TuningTask, arch: str, instructions: set[str]) -> None:
    assert set(spaces(task, arch)) == instructions


def test_a_loop_that_no_tile_of_mma_divides_leaves_wmma() -> None:
    """Forty-nine rows of tiles, as of an image of 28 by 28: TVM's rule for MMA raises an error."""
    assert set(spaces(product(784, 96, 432), "sm_80")) == WMMA


def test_a_program_reads_scores_mutates_and_replays(task: TuningTask) -> None:
    rng = Random(1)
    for name, space in spaces(task, "sm_80").items():
        ((decisions, candidate), *_) = programs(space, 1)
        assert tensor_core_programs(candidate.sch.mod) == name.partition("_")[0]
        assert space.decisions_of(candidate) == decisions
        assert space.read(trace_json(candidate.sch.trace)) == decisions
        again = space.replay(decisions)
        assert structural_equal(again.sch.mod, candidate.sch.mod)
        varied = {space.mutate(decisions, rng) for _ in range(40)}
        assert any(space.replay(one) for one in varied if space.fits(one)), name
        sequence = from_trace_json(candidate.sch.trace.as_json())
        assert sequence == space.template.fill(decisions)
        maps = [p for p in sequence if p.kind == "TransformLayout"]
        assert all("->" in p.names[0] for p in maps)
        if name in WMMA:  # the fragments of a warp are sampled
            assert maps[-1].names == ("i0,i1->((i0//16)//(s0*s1)),((i1//16)//(s2*s3)),((i0//16)%(s0*s1)),"
                                      "((i1//16)%(s2*s3)),(i0%16),(i1%16)",)  # fmt: skip
            assert set(maps[-1].numbers[1:5]) <= {n for d in decisions if isinstance(d, tuple) for n in d}
        for schema in (get_schema("nest-gpu"), get_schema("tcl-gpu")):
            fast = Skeleton(space.template, schema, get_device("a100")).features([decisions])
            np.testing.assert_array_equal(fast, schema.extract([sequence], get_device("a100")))


def test_metaschedules_own_search_takes_them_too(task: TuningTask) -> None:
    strategy = SearchSettings(8, init_min_unmeasured=2, genetic_num_iters=1, max_fail_count=100).strategy()
    context = tune_context(task, tvm.target.Target(target("sm_80")), strategy, 0, threads=2)
    context.pre_tuning(4, 4, context.generate_design_space(), ms.database.MemoryDatabase(), ms.cost_model.RandomModel())
    candidates = context.generate_measure_candidates()
    assert candidates
    assert all(tensor_core_programs(candidate.sch.mod) for candidate in candidates)


def test_features_tell_the_instructions_apart(task: TuningTask) -> None:
    rows = {}
    for name, space in spaces(task, "sm_80").items():
        same = get_schema("nest-gpu").extract([space.template.fill(programs(space, 1)[0][0])])[0, 0]
        rows[name] = tuple(same[-(20 + 3 + 18 + 4) : -(20 + 3 + 18)])
    plain, transposed = sorted(WMMA)
    assert rows[plain] == (1, 0, 0, 0)
    assert rows[transposed] == (1, 0, 0, 1)
    assert rows[MMA.copy().pop()] == (1, 2, 1, 0), "two loops are pipelines, and cp.async fills one"


def test_a_partitioned_tile_keeps_what_the_instruction_needs() -> None:
    slot, rng = TileSlot(64, 5, inner=3, multiple=4), Random(0)
    for tile in slot.draw(rng, 100):
        for one in (tile, slot.mutate(tile, rng)):
            assert np.prod(one) == 64
            assert one[3] * one[4] % 4 == 0


def test_wmma_programs_compute_what_float64_does(task: TuningTask, card: PaperCard, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    right = a.astype(np.float64) @ b.astype(np.float64)
    for space in spaces(task, "sm_75").values():
        for _, candidate in programs(space, 1):
            image = tmp_path / "program"
            plan = compile_cuda(candidate.sch.mod, target("sm_75"), image, "cubin", find_compiler())
            program = CudaProgram(CudaDriver(), image.read_bytes(), plan, [a, b, np.zeros((64, 64), np.float16)])
            program.run(1)
            np.testing.assert_allclose(program.outputs()[2], right, rtol=2**-10, atol=2e-3)
            program.close()


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_random_programs_become_machine_code(task: TuningTask, arch: str, tmp_path: Path) -> None:
    for name, space in spaces(task, arch).items():
        (_, candidate), *_ = programs(space, 1)
        compile_cuda(candidate.sch.mod, target(arch), tmp_path / name, "cubin", find_compiler())
        assert (tmp_path / name).read_bytes()[:4] == b"\x7fELF"


class Layers(torch.nn.Module):
    """A convolution, a norm and a layer, which TVM's pass treats each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.Linear(32, 48)
        self.norm = torch.nn.LayerNorm(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.convolution(x)).flatten(2).transpose(1, 2)
        return torch.softmax(self.norm(self.linear(x)), -1)


@pytest.mark.parametrize("layout", ["channels-last", "as-imported"])
def test_products_of_a_network_read_float16_and_its_ends_stay_float32(layout: str) -> None:
    network = open_network(Layers().eval(), (torch.randn(1, 16, 8, 8),))
    mod = lower(for_inference(network.imported(), layout, cpu=False, precision="float16"), cpu=False)
    main = mod["main"]
    assert (str(main.params[0].ty.dtype), str(main.ret_ty.fields[0].dtype)) == ("float32", "float32")
    heavy = [function for name, function in mod.functions_items() if "conv2d" in str(name) or "matmul" in str(name)]
    assert len(heavy) == 2
    for function in heavy:
        args: Any = ms.arg_info.ArgInfo.from_prim_func(function)
        dtypes = [str(arg.dtype) for arg in args]
        assert dtypes[:2] == ["float16", "float16"], "the data and the weights, which are constants"
        assert 'T.Cast("float32"' in function.script(), "products are added up in float32"


@pytest.mark.parametrize(
    ("precision", "device", "problem", "remedy"),
    [
        ("float16", "k80", r"k80 \(sm_37\) has no tensor cores", "leave out --precision"),
        ("float16", "epyc-7452", "would run on epyc-7452, a CPU", "--device cuda"),
        ("bfloat16", "a100", "would run on a100, a card", "no tensor-core instruction for bfloat16 and TF32"),
        ("bfloat16", "epyc-7452", "for CPUs with AMX, which epyc-7452 lacks", "Sapphire Rapids"),
        ("tf32", "a100", "'tf32' is no precision", "choose float32, float16"),
    ],
)
def test_a_precision_that_a_device_lacks_is_refused(precision: str, device: str, problem: str, remedy: str) -> None:
    with pytest.raises(TuningError, match=problem) as caught:
        check_precision(precision, get_device(device).target, device)
    assert remedy in (caught.value.remedy or "")
    check_precision("float16", get_device("v100").target, "v100")
    check_precision("bfloat16", {"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": "x86_64-linux-gnu"}, "a Xeon")
    check_precision("float32", get_device(device).target, device)
