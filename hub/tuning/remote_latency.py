"""A fresh process that runs compiled networks on an RPC server or a card: `python -m tchub.hub.tuning.remote_latency`.

Reads a request on stdin, answers with one JSON line on stdout; see `latency.compare_in_process`. PyTorch runs on
the CPU here for the right output, which says nothing about latency there; beside a card's networks it runs on the card.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import tvm
from tvm import relax, rpc

from ..device.cuda_network import CudaDriver, CudaNetwork
from ..device.patience import TimeLimit
from ..device.rpc_session import RpcAddress, set_threads
from ..networks.frontend.network import Network
from ..networks.latency import Comparison, Libraries, compare_in_process
from ..networks.rivals import ReferenceNetwork, arrays, asked, check_library, function_of, rival_runs
from ..networks.weights import read_weights

REPEATS = 15
REPEAT_SECONDS = 0.02
# Seconds that the process may compute, or wait for its server or card; and of the session of a server.
SECONDS = 600


def compare_remote(
    network: Network, libraries: Libraries, address: RpcAddress, *, threads: int = 1, precision: str = "float32"
) -> Comparison:
    """Check libraries against PyTorch and time them, on one server of an RPC device.

    Args:
        libraries: builds the libraries, by the names of the systems.
        threads: that they use there.
        precision: in which they multiply.

    Raises:
        LatencyError: the server cannot run them, or went away.
    """
    device = {"address": [address.host, address.port, address.key], "threads": threads, "precision": precision}
    limit, remedy = TimeLimit(SECONDS, SECONDS), "the library is kept: run it on the device itself"
    return compare_in_process(__name__, network, libraries, device, limit, remedy)


def compare_card(
    network: Network,
    libraries: Libraries,
    number: int,
    rivals: Sequence[str] = (),
    precision: str = "float32",
) -> Comparison:
    """Check networks of a card (`device.cuda_network`) against PyTorch on the CPU and time them there.

    Args:
        libraries: builds the archives, by the names of the systems.
        number: of the card.
        rivals: `pytorch` (eager) and `torch.compile`, which run on the same card; why one has no latency stands in
            `Comparison.errors`.
        precision: in which networks and rivals multiply there; the right output is in float32, or float64 in doubt.

    Raises:
        LatencyError: the card cannot run them, or is lost.
    """
    remedy = "see `tchub doctor` and `nvidia-smi`; the same command goes on"
    request = {"card": number, "rivals": list(rivals), "precision": precision}
    return compare_in_process(__name__, network, libraries, request, TimeLimit(SECONDS, SECONDS), remedy)


class _RemoteNetwork:
    """A compiled network, a function of a library, on a server; `library` is what `_loaded` gives."""

    def __init__(self, library: tuple[Any, Any, list[Any]], function: str, inputs: Sequence[torch.Tensor]) -> None:
        self._device, self._machine, weights = library
        self._function, self._inputs, self._weights = function, inputs, weights
        self._take(inputs)

    def _take(self, inputs: Sequence[torch.Tensor]) -> None:
        arguments = [tvm.runtime.tensor(x.numpy(), self._device) for x in inputs]
        self._machine.set_input(self._function, *arguments, *self._weights)

    def run(self) -> Any:
        """Return the outputs, brought here."""
        self._machine.invoke_stateful(self._function)
        return self._machine.get_outputs(self._function)

    def run_on(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return the outputs for other inputs."""
        self._take(inputs)
        outputs = arrays(self.run())
        self._take(self._inputs)  # which are timed
        return outputs

    def time(self, number: int) -> float:
        """Return seconds a run, timed on the server."""
        evaluator = self._machine.time_evaluator("invoke_stateful", self._device, number=number, repeat=1)
        return float(evaluator(self._function).results[0])


def _loaded(session: Any, path: str, sha256: str) -> tuple[Any, Any, list[Any]]:
    """Return a server's device, and a library and its weights there, under a name that no other library has."""
    device, name = session.cpu(), f"{sha256}.so"
    session.upload(path, name)
    machine: Any = relax.VirtualMachine(session.load_module(name), device)
    return device, machine, read_weights(Path(path), device)


class _CardNetwork:
    """A compiled network on a card of this machine."""

    def __init__(self, driver: CudaDriver, path: str, inputs: Sequence[torch.Tensor]) -> None:
        self._network = CudaNetwork(driver, path)
        self._inputs = inputs

    def run(self) -> Any:
        """Return the outputs, brought here."""
        return self.run_on(self._inputs)

    def run_on(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return the outputs for other inputs."""
        # As bytes: NumPy does not know all of PyTorch's types.
        given = [x.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for x in inputs]
        return [x.astype("float32") if x.dtype.name == "bfloat16" else x for x in self._network(given)]

    def time(self, number: int) -> float:
        """Return seconds a run as one CUDA graph, the inputs being on the card."""
        return self._network.run(number)


class _TorchNetwork:
    """PyTorch's network on a card, its inputs being there."""

    def __init__(self, run: Callable[[], Any], device: torch.device) -> None:
        self._run, self._wait = run, torch.get_device_module(device).synchronize

    def time(self, number: int) -> float:
        """Return seconds a run, from the first launch to the end of the last kernel."""
        self._wait()
        start = time.perf_counter()
        for _ in range(number):
            self._run()
        self._wait()
        return (time.perf_counter() - start) / number


def _torch_device(number: int) -> torch.device | None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 here
    return torch.device("cuda", number) if torch.cuda.is_available() else None


def _torch_networks(
    request: dict[str, Any], expected: Sequence[Any]
) -> tuple[dict[str, _TorchNetwork], dict[str, str]]:
    """Return PyTorch's networks on the card, and why one has none."""
    names = request.get("rivals", ())
    if not names:
        return {}, {}
    if (device := _torch_device(request["card"])) is None:
        return {}, dict.fromkeys(names, "this PyTorch cannot use the card")
    if request["reference"].endswith(".onnx"):
        return {}, dict.fromkeys(names, "PyTorch runs an ONNX file on the CPU alone")
    runs, errors = rival_runs(names, ReferenceNetwork(request, device), expected, 1)
    return {name: _TorchNetwork(run, device) for name, run in runs.items()}, errors


def measure(networks: Mapping[str, _RemoteNetwork | _CardNetwork | _TorchNetwork]) -> dict[str, list[float]]:
    """Return seconds a run of each, one number a repeat; they take turns, so that a disturbance hits all."""
    numbers = {name: max(1, round(REPEAT_SECONDS / network.time(1))) for name, network in networks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(REPEATS):
        for name, network in networks.items():
            seconds[name].append(network.time(numbers[name]))
    return seconds


def answer(request: dict[str, Any], reference: ReferenceNetwork) -> dict[str, Any]:
    """Do what `compare_remote` or `compare_card` asks."""
    with torch.inference_mode():
        expected = arrays(reference.run())
    inputs, precision = reference.inputs, request.get("precision", "float32")
    open_network: Callable[[str, str, str], _RemoteNetwork | _CardNetwork]
    if "card" in request:
        driver = CudaDriver(number=request["card"])
        open_network = lambda path, *_: _CardNetwork(driver, path, inputs)  # noqa: E731
    else:
        host, port, key = request["address"]
        session = rpc.connect_tracker(host, port).request(key, session_timeout=SECONDS)
        set_threads(session, request["threads"])
        loaded = cache(partial(_loaded, session))
        open_network = lambda path, sha, function: _RemoteNetwork(loaded(path, sha), function, inputs)  # noqa: E731
    networks = {name: open_network(path, sha, function_of(name)) for name, (path, sha) in request["libraries"].items()}
    with torch.inference_mode():
        checks = {
            name: check_library(network.run(), network.run_on, reference, expected, precision).as_dict()
            for name, network in networks.items()
        }
        rivals, errors = _torch_networks(request, expected)
        return {"checks": checks, "seconds": measure(networks | rivals), "errors": errors}


if __name__ == "__main__":
    print(json.dumps(answer(*asked())))
