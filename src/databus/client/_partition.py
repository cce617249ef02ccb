"""Partitions: what members of a group share out. A number, and of how many."""

from typing import Self


class Partition(int):
    """The number of a partition, from 0: an `int`. of: how many there are; `5` of 8 holds other keys than `5` of 16."""

    of: int

    def __new__(cls, number: int, of: int = 1) -> Self:
        """Partition `number` of `of`."""
        self = super().__new__(cls, number)
        self.of = of
        return self

    @property
    def earlier(self) -> tuple["Partition", ...]:
        """The partitions that held these keys if the group was split since, the nearest layout first.

        >>> Partition(5, 8).earlier
        (1/4, 1/2, 0/1)
        """
        return tuple(Partition(self % of, of) for of in range(self.of // 2, 0, -1) if self.of % of == 0)

    def __repr__(self) -> str:
        return f"{int(self)}/{self.of}"
