"""Several processes that train as one: who this is among them, and sums over all of them.

torch.distributed does the work: `torchrun` starts the processes and tells each its rank, gloo (on CPUs) or
NCCL (on GPUs) carries what they exchange. A process alone is a world of one, and exchanges nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed as dist
from torch import nn

from imdb_transformer.errors import RunError

T = TypeVar("T")
U = TypeVar("U")

# Of a partner that is alive and silent: the first may be tokenizing, or asking teachers. One that is gone
# breaks its connections, which is noticed at once.
TIMEOUT = timedelta(hours=2)


class World(NamedTuple):
    """A process among `size` that do the same work, each on its share."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes; the others only compute."""
        return self.rank == 0

    def gathered(self, value: T) -> list[T]:
        """Every process's value, in order of rank. Raises RunError where one is gone."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _partners():
            dist.all_gather_object(values, value)
        return values

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """`map`, with the items dealt out in turns; every process gets all results, in the items' order."""
        own = list(items)
        parts = self.gathered([function(item) for item in own[self.rank :: self.size]])
        return [parts[i % self.size][i // self.size] for i in range(len(own))]

    def sum_gradients(self, model: nn.Module) -> None:
        """Each parameter's gradient becomes the sum over all processes. Raises RunError where one is gone."""
        if self.size == 1:
            return
        parameters = list(model.parameters())
        flat = torch.cat([
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters
        ])  # one exchange, not one a parameter  # fmt: skip
        with _partners():
            dist.all_reduce(flat)
        for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def wait(self) -> None:
        """Returns when every process has come here. Raises RunError where one is gone."""
        self.gathered(None)


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """The world that `torchrun` started this process in; a world of one without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with _partners():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=TIMEOUT)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


@contextmanager
def _partners() -> Iterator[None]:
    """Turns what torch raises when a partner's connection breaks into a sentence."""
    try:
        yield
    except RuntimeError as error:  # DistBackendError among them; gloo raises plain RuntimeErrors
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"Another process of this training is gone ({reason}). What was saved is whole; start all "
            "again, with --resume."
        ) from None
