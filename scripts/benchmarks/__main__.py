"""Run a benchmark: `python -m scripts.benchmarks NAME [OPTIONS]`; without a name, list them."""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
# Each writes docs/benchmarks/NAME.json; a folder holds `run.py` and what only this benchmark needs. Where a benchmark
# makes several tables, the others' commands are in the module before the first underscore, by their names.
NAMES = (
    *("baselines", "classes", "coverage", "fusion", "gpu_compile", "gtco", "heads", "measure", "packaged"),
    *("predict", "rivals", "rivals_amx", "rivals_bfloat16", "rivals_int8", "rivals_intel"),
    *("sampling", "search", "spaces", "startup", "transfer", "tuning", "tuning_intel"),
)


def main() -> None:
    """Run the benchmark that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        sys.exit("usage: python -m scripts.benchmarks NAME [OPTIONS]\nnames: " + ", ".join(NAMES))
    own = (HERE / name / "run.py").is_file() or (HERE / f"{name}.py").is_file()
    module = name if own else name.partition("_")[0]
    loaded = import_module(f"{__package__}.{module}" + (".run" if (HERE / module / "run.py").is_file() else ""))
    sys.argv = [f"python -m scripts.benchmarks {name}", *sys.argv[2:]]
    (loaded.main if own else getattr(loaded, name))(prog_name=sys.argv[0])


if __name__ == "__main__":
    main()
