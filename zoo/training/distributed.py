"""Several processes train one model: each scores a share of every batch, all take the same step.

A loss compares all programs of a batch, so the scores are gathered before it: every process computes the loss of
the whole batch, and its gradient by its own programs. The sum over processes is the very gradient that one
process would have found, whatever the loss.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class World:
    """The processes of a run, as `torchrun` and `accelerate launch` name them in the environment.

    Attributes:
        rank: this process, from 0; only 0 writes and speaks.
        device: PyTorch's device of this process.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @classmethod
    def join(cls, cuda: bool = False) -> Self:
        """Meet the other processes that a launcher started; alone without one.

        Args:
            cuda: train on GPUs, and gather there (nccl) what is there; on CPUs is gathered (gloo) in any case.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = f"cuda:{local}" if cuda else "cpu"
        if size == 1:
            return cls(device=device)
        if not distributed.is_initialized():
            distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        return cls(distributed.get_rank(), size, device)

    def leave(self) -> None:
        """End the connection to the others."""
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()

    def part(self, count: int) -> slice:
        """Return this process's share of `count` things in a row; the shares differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, count: int) -> Tensor:
        """Return all processes' rows, (count, ...), given this one's part; only its own carry a gradient."""
        if self.size == 1:
            return own
        whole = own.new_zeros(count, *own.shape[1:])
        whole[self.part(count)] = own.detach()
        distributed.all_reduce(whole)
        return torch.cat([whole[: self.part(count).start], own, whole[self.part(count).stop :]])

    def backward(self, loss: Tensor, own: Tensor) -> None:
        """Compute the gradient of a whole batch's loss by this process's rows, `own`, that `gather` was given.

        What the loss reads beside the rows, a weight of its own, every process sees whole: the first one counts it.
        """
        if self.rank == 0:
            if loss.requires_grad:
                loss.backward()
        elif own.requires_grad and len(own):  # a short last batch leaves a process nothing
            own.backward(torch.autograd.grad(loss, own))

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over the processes, in one message; None stays where none has any.

        For an optimizer a gradient of 0 is another thing than none: it lets momenta and weights decay.
        """
        held = list(parameters)
        if self.size == 1 or not held:
            return
        some = torch.stack([p.new_tensor(float(p.grad is not None)) for p in held])
        flat = torch.cat([some, *((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in held)])
        distributed.all_reduce(flat)
        some, *parts = flat.split([len(held), *(p.numel() for p in held)])
        for parameter, part, count in zip(held, parts, some.tolist(), strict=True):
            parameter.grad = part.view_as(parameter) if count else None


ALONE = World()
