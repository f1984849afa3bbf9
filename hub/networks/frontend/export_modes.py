"""What is changed in PyTorch and transformers while a module is exported: logs, checks of values, packed sequences."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from itertools import groupby
from threading import RLock
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_ALONE = RLock()
_MOST_LENGTHS = 32  # of packed sequences, each of which has its own recurrent layers


@contextmanager
def export_mode() -> Iterator[None]:
    """Inside, PyTorch exports for inference, and takes modules that it would refuse; one thread at a time."""
    with _ALONE, ExitStack() as stack:
        ours = _unchecked_distributions, _left_calls, _moved_modules, _stacked_numbers, _packed_sequences, _own_ways
        for mode in (torch.no_grad(), _silence(), *(mode() for mode in ours)):
            stack.enter_context(mode)
        yield


@contextmanager
def _silence() -> Iterator[None]:
    """Keep back what PyTorch logs and prints beside the error that it raises: tracebacks, and the whole graph."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    try:
        setattr(owner, name, function)
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Inside, `torch.distributions` takes parameters as they are: an export cannot raise errors by their values."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def _left_calls() -> AbstractContextManager[None]:
    """Inside, an export forgets the call of a part that lacks an argument: a module may catch it and call another way.

    Speech networks try `layer(x, lengths=lengths)` before `layer(x)`; PyTorch would believe itself in the first call.
    Other errors may be the export's own, and the module then takes a way that it does not take by itself.
    """
    call_module: Any = torch.fx.Tracer.call_module

    def call(self: Any, *args: Any) -> Any:
        entered = dict(self.module_stack)
        try:
            return call_module(self, *args)
        except TypeError:
            self.module_stack.clear()
            self.module_stack.update(entered)
            raise

    return _replaced(torch.fx.Tracer, "call_module", call)


@contextmanager
def _own_ways() -> Iterator[None]:
    """Inside, transformers' networks compute as they do by themselves, without the ways that they keep for exports.

    Those have masks where there is nothing to mask, as sizes may be free, and invert the triangular matrices of gated
    delta rules row by row, as other runtimes have no solver: hundreds of kernels a layer. Where a module also asks
    whether it is compiled, its ways for exports are the plain ones.
    """
    asks, compiled = "is_torchdynamo_exporting", "is_torchdynamo_compiling"
    loaded = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    own = [names for names in loaded if asks in names and compiled not in names]
    before = [names[asks] for names in own]
    try:
        for names in own:
            names[asks] = lambda: False
        yield
    finally:
        for names, function in zip(own, before, strict=True):
            names[asks] = function


def _moved_modules() -> AbstractContextManager[None]:
    """Inside, a module stays as it is where its `forward` moves a part to the device and type that it has."""
    apply: Any = torch.nn.Module._apply

    def moved(self: Any, function: Callable[[torch.Tensor], torch.Tensor], *args: Any) -> Any:
        pairs = ((x, function(x)) for x in (*self.parameters(), *self.buffers()))
        stays = all((x.dtype, x.device) == (y.dtype, y.device) for x, y in pairs)
        return self if stays else apply(self, function, *args)

    return _replaced(torch.nn.Module, "_apply", moved)


def _stacked_numbers() -> AbstractContextManager[None]:
    """Inside, `torch.tensor` of a list with tensors stacks them; PyTorch would read numbers that an export has not."""
    make: Any = torch.tensor

    def tensor(data: Any, *, dtype: Any = None, device: Any = None, **others: Any) -> torch.Tensor:
        if isinstance(data, torch.Tensor) or not any(isinstance(x, torch.Tensor) for x in tree_leaves(data)):
            return make(data, dtype=dtype, device=device, **others)
        parts = [x if isinstance(x, torch.Tensor) else tensor(x) for x in data]
        return torch.stack(parts).to(dtype=dtype, device=device)

    return _replaced(torch, "tensor", tensor)


@contextmanager
def _packed_sequences() -> Iterator[None]:
    """Inside, recurrent layers take packed sequences whose lengths are known: those of one length as a padded batch.

    PyTorch's own operators on them read the numbers of steps from a tensor that an export does not know.
    """
    functions: Any = torch._VF
    held, unknown = dict(vars(functions)), list[Exception]()
    layers = {name: _of_packed(getattr(functions, name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    ours = layers | {"_pack_padded_sequence": _pack, "_pad_packed_sequence": _pad}

    def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:  # of values that are not known, which the module itself would not raise
                unknown.append(error)
                raise

        return call

    try:
        vars(functions).update({name: remembered(function) for name, function in ours.items()})
        yield
        if unknown:  # the module caught it
            raise unknown[0]
    finally:
        for name in ours:
            delattr(functions, name)
        vars(functions).update(held)


def _numbers(x: torch.Tensor) -> list[int]:
    return [int(number) for number in x.tolist()]  # PyTorch raises an error of values that it does not know


def _rows(x: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
    return x if [*numbers] == [*range(len(x))] else x.index_select(0, torch.tensor(numbers))


def _places(counts: Sequence[int]) -> list[list[int]]:
    """Return the number of the row of each step of each sequence, from how many sequences have each step."""
    starts = [sum(counts[:step]) for step in range(len(counts))]
    return [[start + i for start, count in zip(starts, counts, strict=True) if i < count] for i in range(counts[0])]


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x, sizes = x.transpose(0, 1) if batch_first else x, _numbers(lengths)
    if sizes != sorted(sizes, reverse=True) or not 0 < sizes[-1] <= sizes[0] <= len(x) or len(sizes) != x.shape[1]:
        raise ValueError(f"lengths of packed sequences are {sizes}: sort them, see enforce_sorted=False")
    steps = range(sizes[0])
    numbers = [step * len(sizes) + i for step in steps for i, size in enumerate(sizes) if step < size]
    return _rows(x.flatten(0, 1), numbers), torch.tensor([sum(size > step for size in sizes) for step in steps])


def _pad(
    x: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: float, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = _places(_numbers(batch_sizes))
    numbers = [places[i] if i < len(places) else len(x) for i in range(length) for places in sequences]
    rows = torch.cat([x, torch.full_like(x[:1], value)]) if len(x) in numbers else x
    padded = _rows(rows, numbers).unflatten(0, (length, len(sequences)))
    return padded.transpose(0, 1) if batch_first else padded, torch.tensor([len(places) for places in sequences])


def _of_packed(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer that computes packed sequences of each length apart."""

    def run(x: torch.Tensor, *args: Any) -> Any:
        if not isinstance(args[0], torch.Tensor) or args[0].dtype.is_floating_point:
            return layer(x, *args)
        batch_sizes, states, *rest = args
        sequences, results, order = _places(_numbers(batch_sizes)), [], []
        if (count := len({len(rows) for rows in sequences})) > _MOST_LENGTHS:
            raise ValueError(f"packed sequences have {count} lengths, more than {_MOST_LENGTHS}: pad them to a few")
        for length, group in groupby(range(len(sequences)), lambda i: len(sequences[i])):
            chosen = [*group]
            numbers = [sequences[i][step] for step in range(length) for i in chosen]
            order.extend(numbers)
            own = tree_map(partial(torch.narrow, dim=1, start=chosen[0], length=len(chosen)), states)
            rows, *final = layer(_rows(x, numbers).unflatten(0, (length, len(chosen))), own, *rest, False)
            results.append((rows.flatten(0, 1), *final))
        rows, *final = zip(*results, strict=True)
        back = sorted(range(len(order)), key=order.__getitem__)
        return _rows(torch.cat(rows), back), *(torch.cat(each, 1) for each in final)

    return run
