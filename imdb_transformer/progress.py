"""Reports the progress of long work to the commands. Python users see nothing."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# Takes items, the name of the work and the number of items. Returns the same items.
watch: Callable[[Iterable[Any], str, int | None], Iterable[Any]] | None = None


def tracked(items: Iterable[T], work: str, total: int | None = None) -> Iterable[T]:
    """The items. The watcher, if there is one, sees how many of `total` have been taken."""
    return items if watch is None else watch(items, work, total)
