"""Several processes that train one model: the rank of each, and sums over all of them.

`torchrun` starts the processes and tells each its rank; torch.distributed exchanges tensors between them, by
gloo on CPUs and by NCCL on GPUs. A single process is a world of size 1 and exchanges nothing.
"""

import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from imdb_transformer.errors import (
    USER_ERRORS,
    ConfigError,
    Interrupted,
    RunError,
    reason_of,
    requests_to_stop,
)

T = TypeVar("T")

# How long to wait for a process that is alive: the first one may be tokenizing, or predicting soft labels. If
# a process dies, its connections break, and the others notice at once.
TIMEOUT = timedelta(hours=2)


class ConnectionLost(RunError):
    """Another process is gone."""


class World(NamedTuple):
    """One of `size` processes that do the same work, each on its share."""

    rank: int = 0
    size: int = 1
    gpu: int = 0  # number of this process's GPU on its machine, if it has GPUs

    @property
    def is_first(self) -> bool:
        """Whether this process writes. The others only compute."""
        return self.rank == 0

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors of one type by their sums over all processes, in a single exchange.

        Raises ConnectionLost if a process is gone.
        """
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _partners():
            dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def broadcast(self, value: T) -> T:
        """The first process's value. Raises ConnectionLost if a process is gone."""
        if self.size == 1:
            return value
        values = [value]
        with _partners():
            dist.broadcast_object_list(values)
        return values[0]

    def on_first(self, work: Callable[[], T]) -> T | None:
        """The result of the first process's work; None in the others. All raise its errors for users."""
        result = problem = None
        if self.is_first:
            try:
                result = work()
            except USER_ERRORS as error:
                if self.size == 1:
                    raise
                problem = error
        if problem := self.broadcast(problem):
            raise problem
        return result

    def barrier(self) -> None:
        """Returns when every process has called it. Raises ConnectionLost if one is gone."""
        self.all_reduce_([torch.zeros(1)])


ALONE = World()
NOT_TORCHRUN = "Unset it for one process; torchrun sets it for several."


@contextmanager
def process_group() -> Iterator[World]:
    """The processes that `torchrun` started, or else this process alone. May be nested."""
    size = _number("WORLD_SIZE", "1")
    if size == 1:
        yield ALONE
        return
    gpu = _number("LOCAL_RANK", "0")
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), gpu)
        return
    num_gpus = torch.cuda.device_count()
    if gpu < num_gpus:
        torch.cuda.set_device(gpu)
    # Torch's compiler imports this module. Its functions keep the current process group as their default, and
    # with it gloo's threads, which may abort when the interpreter ends. Imported now, they keep no group.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        # The signals end the process at once: Python would notice them when all processes have come.
        with _partners(), signals_handled_by(signal.SIG_DFL):
            dist.init_process_group("cpu:gloo,cuda:nccl" if num_gpus else "gloo", timeout=TIMEOUT)
    except ValueError as error:
        raise ConfigError(f"WORLD_SIZE is set, but not by torchrun ({error}). {NOT_TORCHRUN}") from None
    try:
        yield World(dist.get_rank(), dist.get_world_size(), gpu)
    except Interrupted as stopped:
        # torchrun stops the others when a process dies. They may be ending already, for a better reason.
        raise _lost_before(stopped) or stopped from None
    finally:
        with signals_handled_by(signal.SIG_IGN):  # an exception in there could leave gloo's threads
            dist.destroy_process_group()


def _lost_before(stopped: Interrupted) -> ConnectionLost | None:
    """The loss of the connection that was being handled when a signal came; None if there was none."""
    error: BaseException | None = stopped
    while error is not None and not isinstance(error, ConnectionLost):
        error = error.__context__
    return error


def _number(variable: str, default: str) -> int:
    """The value of an environment variable. Raises ConfigError if it is not a number."""
    value = os.environ.get(variable, default)
    if not value.isdecimal():
        raise ConfigError(f"{variable} is {value!r}, which is not a whole number, 0 or more. {NOT_TORCHRUN}")
    return int(value)


@contextmanager
def signals_handled_by(handler: Any) -> Iterator[None]:
    """Gives the requests to stop another handler.

    It does nothing outside the main thread: Python handles signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in requests_to_stop()}
    try:
        yield
    finally:
        for number, each in former.items():
            signal.signal(number, each)


@contextmanager
def _partners() -> Iterator[None]:
    """Turns torch's errors into a sentence when the connection to another process breaks."""
    try:
        yield
    except RuntimeError as error:  # DistBackendError among them; gloo raises plain RuntimeErrors
        reason = reason_of(error)
        raise ConnectionLost(
            f"The connection to another process is lost ({reason}). The saved files are whole. If a "
            "training has begun, continue it with --resume RUN; otherwise start all processes again."
        ) from None
