"""Compiling CUDA source in this process by NVRTC, for which a module that notes its calls stands in."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.device import cuda_compile
from tchub.hub.device.cuda_compile import NVRTC, assemble, check_compiler, find_compiler
from tchub.hub.device.errors import DeviceError

SOURCE = """
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  #ifndef __asm__
  #define __asm__ asm
  #endif
#else
  #include <cstdint>
#endif
extern "C" __global__ void main_kernel(float* p) { p[threadIdx.x] = 1.0f; }
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Source and options of each program that NVRTC was given; one with `broken` or `mma.h` does not compile."""
    given: list[tuple[str, list[str]]] = []

    def compile_program(source: str, _: int, options: list[bytes]) -> tuple[int]:
        given.append((source, [option.decode() for option in options]))
        return (6 if "broken" in source or "mma.h" in source else 0,)

    def log_of(source: str) -> bytes:
        what = b'cannot open source file "crt/mma.h"' if "mma.h" in source else b"broken"
        return b"kernels.cu(1): note\nkernels.cu(2): error: " + what + b"\n\0"

    calls: dict[str, Any] = {
        "nvrtcVersion": lambda: (0, 13, 0),
        "nvrtcGetNumSupportedArchs": lambda: (0, 2),
        "nvrtcGetSupportedArchs": lambda: (0, [75, 90, 0, 0]),
        "nvrtcCreateProgram": lambda source, *_: (0, source.decode()),
        "nvrtcCompileProgram": compile_program,
        "nvrtcDestroyProgram": lambda _: (0,),
    }
    for name, text_of in (("ProgramLog", log_of), ("CUBIN", lambda _: b"\x7fELF"), ("PTX", lambda _: b".version 9.0")):
        calls[f"nvrtcGet{name}Size"] = lambda source, text_of=text_of: (0, len(text_of(source)))
        calls[f"nvrtcGet{name}"] = lambda source, buffer, text_of=text_of: buffer.__setitem__(
            slice(None), text_of(source)
        )
    monkeypatch.setattr(cuda_compile, "_nvrtc", lambda: SimpleNamespace(**calls))
    monkeypatch.delenv("TCHUB_NVCC", raising=False)
    return given


def test_nvrtc_is_taken_where_it_is_unless_an_nvcc_is_named(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_compiler() == NVRTC
    check_compiler(NVRTC, "sm_90", "13.2")
    with pytest.raises(DeviceError, match=r"for CUDA 12\.8, and nvrtc is of CUDA 13\.0"):
        check_compiler(NVRTC, "sm_90", "12.8")
    with pytest.raises(DeviceError, match="does not compile for sm_70") as caught:
        check_compiler(NVRTC, "sm_70", "13.0")
    assert "sm_75, sm_90" in caught.value.remedy
    monkeypatch.setenv("TCHUB_NVCC", "/opt/nvcc")
    assert find_compiler() == "/opt/nvcc"


def test_a_program_without_headers_is_compiled_without_reading_any(compiled: Any, tmp_path: Path) -> None:
    assemble(SOURCE, "sm_90", tmp_path / "a.cubin", "cubin", NVRTC)
    assert (tmp_path / "a.cubin").read_bytes() == b"\x7fELF"
    source, options = compiled[0]
    assert "#include" not in source
    assert "typedef unsigned char uint8_t;" in source
    assert "--gpu-architecture=sm_90" in options
    assert not any(option.startswith("-I") for option in options)
    assemble(SOURCE, "sm_90", tmp_path / "a.ptx", "ptx", NVRTC)
    assert (tmp_path / "a.ptx").read_bytes() == b".version 9.0"
    assert "--gpu-architecture=compute_90" in compiled[1][1]


def test_a_program_that_needs_headers_gets_their_folders(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_compile, "_include_folders", lambda: ("/cuda/include",))
    assemble(f"#include <cuda_fp16.h>\n{SOURCE}", "sm_90", tmp_path / "a", "cubin", NVRTC)
    assemble(SOURCE + "using std::is_same;", "sm_90", tmp_path / "b", "cubin", NVRTC)
    assert all("-I/cuda/include" in options for _, options in compiled)
    assert ["cuda/std/cstdint" in source for source, _ in compiled] == [False, True]


@pytest.mark.parametrize(
    ("first_line", "message"),
    [
        ("broken", r"NVRTC failed: kernels\.cu\(2\): error: broken"),
        ("#include <mma.h>", r'"crt/mma\.h"; .* pip install \'tchub\[cuda\]\''),
    ],
)
def test_an_error_is_the_first_that_nvrtc_tells_and_a_missing_header_has_its_package(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_line: str, message: str
) -> None:
    monkeypatch.setattr(cuda_compile, "_include_folders", lambda: ())
    with pytest.raises(RuntimeError, match=message):
        assemble(f"{first_line}\n{SOURCE}", "sm_90", tmp_path / "a", "cubin", NVRTC)
    assert not (tmp_path / "a").exists()


def test_headers_that_a_package_lacks_are_those_of_the_toolkit_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = SimpleNamespace(find_nvidia_header_directory=lambda name: f"/packages/{name}")
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=package))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", package)
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent))
    cuda_compile._include_folders.cache_clear()
    folders = cuda_compile._include_folders()
    cuda_compile._include_folders.cache_clear()
    assert folders == ("/packages/cudart", "/packages/cccl", str(tmp_path / "cuda" / "include"))
