"""Which host user ids the boxes of one cell get: pairs, one for the agent and one for the code, never shared."""

from __future__ import annotations


class IdPairs:
    """Pairs of ids of the cell's user namespace: (1, 2), (3, 4), …; one comes back only when its box is gone."""

    def __init__(self, count: int) -> None:
        self._next = 1
        self._end = count
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int] | None:
        """Return a pair, or None when all are taken."""
        if self._free:
            return self._free.pop()
        if self._next + 1 >= self._end:
            return None
        pair = (self._next, self._next + 1)
        self._next += 2
        return pair

    def give_back(self, pair: tuple[int, int]) -> None:
        """Return a pair whose box is gone."""
        self._free.append(pair)
