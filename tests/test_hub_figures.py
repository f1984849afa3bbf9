"""The page's sections on the fuzzer and on start-up, from made-up runs; and the fuzzer's own sums."""

from __future__ import annotations

from typing import Any

from script_kit import scripts_fixture

tools = scripts_fixture(benchmarks_page="benchmarks.report.page", fuzz="fuzz.run", bench_startup="benchmarks.startup")


def job(name: str, summary: dict[str, Any], details: dict[str, Any]) -> dict[str, Any]:
    machine = {"device": "test-cpu", "cpu_model": "Test CPU", "cores": 2}
    facts = {"command": f"python scripts/{name}.py", "date": "2026-01-01", "seeds": [0], "machine": machine}
    return facts | {"summary": summary, "details": details}


def row(target: str, **changes: Any) -> dict[str, Any]:
    found = {"target": target, "inputs": 100_000, "accepted": 20_000, "refused": {"IndexFileError": 80_000}}
    return found | {"crashes": {}, "hangs": {}, "slowest_ms": 12.5, "seconds": 40.0} | changes


def test_the_page_says_what_every_target_was_fed_and_what_became_of_it(tools: Any) -> None:
    rows = [row("index"), row("lock", inputs=90_000, crashes={"KeyError: x": "1-ab"})]
    text = tools["benchmarks_page"].page({"fuzz": job("fuzz", tools["fuzz"].summary(rows), {"targets": rows})})
    assert "| index | 100,000 | 20,000 | IndexFileError (80,000) | 0 | 0 | 12.5 |" in text
    assert "| crashes | at most 0 | **1** | missed |" in text
    assert "Damaged and hostile files: inputs of a target is 90,000; the goal is at least 100,000." in text


def test_the_fuzzer_sums_its_targets_up(tools: Any) -> None:
    rows = [row("a"), row("b", inputs=7, accepted=3, refused={"x": 4}, hangs={"long": "1-ab"}, slowest_ms=99.0)]
    assert tools["fuzz"].summary(rows) == {
        "targets": 2, "inputs": 100_007, "fewest_inputs": 7, "accepted": 20_003, "refused": 80_004, "crashes": 0,
        "hangs": 1, "slowest_ms": 99.0,
    }  # fmt: skip


def command(median: float, heavy: tuple[str, ...] = ()) -> dict[str, Any]:
    quartiles = [median - 1, median + 1]
    return {"median_ms": median, "quartiles_ms": quartiles, "above_python_ms": median - 20.0, "modules": 99,
            "heavy_modules": list(heavy)}  # fmt: skip


def test_the_page_says_how_long_commands_take_and_which_are_slower_than_the_hubs(tools: Any) -> None:
    rows = {"python -c pass": command(20.0), "tchub --help": command(90.0), "tchub slow": command(900.0, ("torch",)),
            "hf --help": command(500.0)}  # fmt: skip
    found = {"startup": job("bench_startup", {"help_beside_hf": 5.56, "torch_or_tvm_imported": 1}, {"commands": rows})}
    text = tools["benchmarks_page"].page(found)
    assert "| `tchub --help` | 90 | 89 to 91 | 70 | 99 | no |" in text
    assert "- `tchub slow` takes 900 ms, `hf --help` 500 ms." in text
    assert "those that import torch or TVM is 1; the goal is at most 0" in text


def test_what_a_command_imports_is_seen_in_a_run_of_it(tools: Any) -> None:
    import sys

    modules = tools["bench_startup"].imported_by([sys.executable, "-c", "import json.tool"])
    assert {"json", "json.tool"} <= modules
    assert "torch" not in modules
