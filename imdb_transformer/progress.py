"""Long work says how far it has come, to whoever watches: the commands. From Python nothing is shown."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# Takes items, the name of the work and the number of items, and gives the same items.
watch: Callable[[Iterable[Any], str, int | None], Iterable[Any]] | None = None


def tracked(items: Iterable[T], work: str, total: int | None = None) -> Iterable[T]:
    """The items. The watcher, if there is one, sees how many of `total` have been taken."""
    return items if watch is None else watch(items, work, total)
