"""What to compute on, and in which type: chosen at run time, and said."""

import ctypes
import sys
from pathlib import Path
from typing import NamedTuple

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
        """One line for people: device, threads, type."""
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, {self.precision} activations"
        return f"{processor_name()}, {torch.get_num_threads()} threads, {self.precision} activations"


def choose(config: TrainConfig, *, gpu: int = 0) -> Hardware:
    """The hardware a config asks for; `gpu`: which one. Raises ConfigError for a GPU that is not there."""
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError('train.device = "cuda", but torch sees no GPU here; "auto" or "cpu" will run.')
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
    """Asks glibc not to give freed blocks back to the system, which is where activations come from and go.

    For a process of ours: a command calls it, and `Predictor.load` does not.

    Otherwise each of a step's large tensors is mapped afresh and costs a page fault every 4 KiB: a quarter
    of the time of a step (scripts/README.md). Does nothing where the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 << 20)):
            mallopt(parameter, value)


def release_freed_memory() -> None:
    """Gives back to the system what `keep_freed_memory` keeps and nothing uses.

    A batch's tensors rarely fit the gaps that those of another size left, so the gaps add up. Does nothing
    where the C library has no `malloc_trim`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def computes_in_bf16(device: torch.device) -> bool:
    """Whether matrix products in bf16 are faster than in fp32 there, not merely possible."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def processor_name() -> str:
    """The processor as its maker calls it, where the system says."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU"
