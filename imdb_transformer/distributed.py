"""Several processes that train as one: who this is among them, and sums over all of them.

torch.distributed does the work: `torchrun` starts the processes and tells each its rank, gloo (on CPUs) or
NCCL (on GPUs) carries what they exchange. A process alone is a world of one, and exchanges nothing.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed as dist
from torch import nn

from imdb_transformer.errors import ConfigError, RunError

T = TypeVar("T")
U = TypeVar("U")

# Of a partner that is alive and silent: the first may be tokenizing, or asking teachers. One that is gone
# breaks its connections, which is noticed at once.
TIMEOUT = timedelta(hours=2)


class World(NamedTuple):
    """A process among `size` that do the same work, each on its share."""

    rank: int = 0
    size: int = 1
    gpu: int = 0
    """number of this process's own on its machine, where there are GPUs"""

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

    def in_turn(self, function: Callable[[], T]) -> T:
        """What a function gives: called by the first process, then, when it is done, by the others.

        So that what it writes is written once, and found.
        """
        if self.is_first:
            own = function()
            self.wait()
            return own
        self.wait()
        return function()

    def sum_gradients(self, model: nn.Module) -> None:
        """Each parameter's gradient becomes the sum over all processes. Raises RunError where one is gone."""
        if self.size == 1:
            return
        every = list(model.parameters())
        used = [any(flags) for flags in zip(*self.gathered([p.grad is not None for p in every]), strict=True)]
        parameters = [p for p, is_used in zip(every, used, strict=True) if is_used]
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
NOT_TORCHRUN = "Unset it for one process; torchrun sets it for several."


@contextmanager
def joined() -> Iterator[World]:
    """The world that `torchrun` started this process in; a world of one without it."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal():
        raise ConfigError(f"WORLD_SIZE is {size!r}, which is no number. {NOT_TORCHRUN}")
    if int(size) == 1:
        yield ALONE
        return
    num_gpus, gpu = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    if gpu < num_gpus:
        torch.cuda.set_device(gpu)
    # The first optimizer imports this, and its functions' defaults are the group that there is then: they
    # would keep it, and gloo's threads, past the interpreter's end, where such a thread can abort.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        with _partners():
            dist.init_process_group("cpu:gloo,cuda:nccl" if num_gpus else "gloo", timeout=TIMEOUT)
    except ValueError as error:
        raise ConfigError(f"WORLD_SIZE is set, but not by torchrun ({error}). {NOT_TORCHRUN}") from None
    try:
        yield World(dist.get_rank(), dist.get_world_size(), gpu)
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
            f"The connection to another process is lost ({reason}). What was saved is intact: start all "
            "processes again, a training with --resume."
        ) from None
