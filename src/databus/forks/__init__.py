"""Processes that need not import first: each is forked from one that has. Start with `Nursery`."""

from databus.forks._nursery import Nursery
from databus.forks._request import Forked

__all__ = ["Forked", "Nursery"]
