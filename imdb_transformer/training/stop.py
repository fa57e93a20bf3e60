"""Ctrl-C and SIGTERM while training: the step is finished and saved, then the run stops."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """The signal that asked the training to stop, or None."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Turns the first signal into a request to stop. A Ctrl-C after it stops the program at once.

    A second SIGTERM does not: stopping a group of processes may send it twice, directly and through torchrun.
    Outside the main thread nothing is caught, as Python handles signals only in the main thread.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        request.signal = signal.Signals(number)
        signal.signal(signal.SIGINT, previous[signal.SIGINT])

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
