"""The storage contract: a store keeps pages of K/V outside this process, by keys that mean the same for ever.

A key names everything that a page's bytes depend on: tokens from the beginning, model, adapter, salt, layout. So equal
keys have equal pages, in every process and on every machine. The host makes the keys, checks what it gets back, and
calls from a queue of its own: a slow store delays nobody, and one that raises has nothing. Nothing is stored yet.
"""

from abc import ABC, abstractmethod


class Storage(ABC):
    """Keeps pages. Built once with its options; called from one thread of the host's at a time.

    Where several processes share what it keeps, such as a folder, that is the store's own business.
    """

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether `get` would find the page. `key` is text of lower-case letters and digits, 64 characters at most."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The whole page, as it was put under just this key; None where it is not there."""

    @abstractmethod
    def put(self, key: str, page: memoryview) -> bool:
        """Keep a page: from then on `exists` is true, until the store drops it. False where there is no room.

        `page` is contiguous bytes, of any size; the memory is the host's, and something else after the call. A key that
        is there already has the same page already. A full disk is no room; what else fails may raise.
        """

    def close(self) -> None:
        """Called once, last. What was put stays where the store is one that lasts."""
