"""The device to compute on, and the type of activations on it."""

import ctypes
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imdb_transformer.config import TrainConfig
from imdb_transformer.errors import ConfigError

# Of mallopt(3), in malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


class Hardware(NamedTuple):
    """A device and the type of activations on it."""

    device: torch.device
    dtype: torch.dtype

    @property
    def precision(self) -> str:
        """The type's name in a config."""
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"

    def describe(self) -> str:
        """One line: device, threads, and type of activations."""
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, {self.precision} activations"
        num_threads = torch.get_num_threads()
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        return f"{processor_name()}, {threads}, {self.precision} activations"


def choose(config: TrainConfig, *, gpu: int = 0) -> Hardware:
    """The hardware that a config asks for; `gpu` is one of several. Raises ConfigError if it is missing."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError('train.device = "cuda", but torch sees no GPU here; use "auto" or "cpu".')
    on_gpu = available and config.device != "cpu"
    if on_gpu and gpu >= torch.cuda.device_count():
        raise ConfigError(
            f"There are more processes than this machine's {torch.cuda.device_count()} GPUs: lower "
            '--nproc-per-node, or set train.device = "cpu".'
        )
    device = torch.device("cuda", gpu) if on_gpu else torch.device("cpu")
    wants_bf16 = config.precision == "bf16" or (config.precision == "auto" and computes_in_bf16(device))
    return Hardware(device, torch.bfloat16 if wants_bf16 else torch.float32)


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next tensors.

    Otherwise the system maps each large tensor of a step again, with a page fault every 4 KiB. That takes a
    quarter of a step's time (scripts/README.md). It changes the whole process, so commands and
    trainings call it, and `Predictor.load` does not. Does nothing if the C library has no `mallopt`.
    """
    if mallopt := _libc("mallopt"):
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 << 20)):
            mallopt(parameter, value)


def release_freed_memory() -> None:
    """Gives unused memory, which `keep_freed_memory` kept, back to the system.

    Tensors of one batch rarely fit the gaps that another batch left, so the gaps add up. Does nothing if the
    C library has no `malloc_trim`.
    """
    if malloc_trim := _libc("malloc_trim"):
        malloc_trim(0)


def _libc(function: str) -> Any:
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None


def computes_in_bf16(device: torch.device) -> bool:
    """Whether matrix products on the device are faster in bf16 than in fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def compiling_problem(device: torch.device) -> str:
    """Why `torch.compile` does not work on a device, in a line; empty if it works."""
    try:
        torch.compile(torch.neg)(torch.zeros(1, device=device))
    except RuntimeError as error:  # no Triton, no C compiler, or a GPU that Triton does not know
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def processor_name() -> str:
    """The processor's model name, or "CPU" if it is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else "CPU"
