"""An nvcc of paper: CUDA source becomes a shared library for `paper_card.c`, by the C++ compiler of this machine.

Faults: a folder FAULTS beside this script may hold files named after numbers; the program compiled as that number
gets the file's text as its fault.
"""

import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC")


def translate(source: str, fault: str) -> str:
    """Return C++ of TVM's CUDA source: its kernels as they are, and for each a function that the driver calls."""
    source = re.sub(r"#include <(?:cuda|cuda_fp16|mma)\.h>|asm volatile\(.*?\);", "", source)
    source = re.sub(r"extern __shared__ (?:\w+\(\d+\) )?(\w+) (\w+)\[\];", r"static \1 \2[1 << 18];", source)
    source = re.sub(r"__shared__ (alignas\(\d+\)) ", r"\1 static ", source)
    kernels = dict.fromkeys(re.findall(r"__global__ void __launch_bounds__\(\d+\) (\w+)\(", source))
    together = "true" if re.search(r"__syncthreads|__shfl", source) else "false"
    calls = [
        f"static void {name}__run(void **p) {{ apply({name}, p); }}\n"
        f'extern "C" void {name}__call(void **p, const unsigned *s) {{ launch({name}__run, p, s, {together}); }}\n'
        f'extern "C" const int {name}__count = parameters({name});'
        for name in kernels
    ]
    return "\n".join(['#include "paper_cuda.h"', source, *calls, f'extern "C" const char paper_fault[] = "{fault}";'])


def main(arguments: list[str], compiled_header: str) -> int:
    """Compile as `nvcc -cubin -arch=ARCH ... -o OUTPUT SOURCE` does, or answer what it is asked of itself."""
    if answer := {"--version": "Cuda compilation tools, release 13.0, V13.0.88", "--list-gpu-code": "sm_75\nsm_89"}.get(
        arguments[0]
    ):
        print(answer)
        return 0
    output, source = Path(arguments[arguments.index("-o") + 1]), Path(arguments[-1])
    code = translate(source.read_text(), _fault(Path(sys.argv[0]).with_name("faults")))
    # Many tests compile the same programs: each is kept beside the header.
    if not (kept := Path(compiled_header, sha256(code.encode()).hexdigest())).exists():
        command = ["g++", "-x", "c++", *FLAGS, f"-I{compiled_header}", f"-I{Path(__file__).parent}"]
        part = kept.with_suffix(f".{os.getpid()}")
        if failed := subprocess.run([*command, "-o", str(part), "-"], input=code, text=True, check=False).returncode:
            return failed
        part.rename(kept)
    output.write_bytes(kept.read_bytes())
    return 0


def _fault(folder: Path) -> str:
    """Return the fault of this program: the next number's, taken once."""
    for number in range(1, 1 << 16):
        try:
            (folder / f"taken-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError:
            return ""
        file = folder / str(number)
        return file.read_text() if file.exists() else ""
    return ""
