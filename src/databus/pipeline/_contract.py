"""Contracts of the plugins: inputs, filters, outputs. The built-in ones and users' own, by entry points, are alike.

An edge of the graph carries either *tables* (any number of tables, as frames) or *typed* rows of one table. An output
runs in the driver, where it is given a `ChangeBatch` at a time, or in Spark, where it is given the micro-batch.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from databus.pipeline._batch import ChangeBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Delivery(StrEnum):
    """What a target shows after a crash and a replay; each output declares one and is held to it."""

    EXACTLY_ONCE = "exactly_once"
    REPEATS_HARMLESS = "repeats_harmless"
    AT_LEAST_ONCE = "at_least_once"


class NodeConfig(BaseModel):
    """What every node of the graph has."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: str = Field(description="Kind of node.")


class FilterConfig(NodeConfig):
    """What every filter has."""

    from_: list[str] = Field(alias="from", min_length=1, description="Names of the inputs and filters before it.")


class OutputConfig(NodeConfig):
    """What every output has."""

    from_: list[str] = Field(alias="from", min_length=1, description="Names of the inputs and filters before it.")
    lane: str | None = Field(None, description="Outputs of the same lane share one query, and wait for each other.")


@dataclass(frozen=True, slots=True)
class OutputContext:
    """Where an output works: the pipeline's name, its own name, and the folder that relative paths start from."""

    pipeline: str
    output: str
    folder: Path


class Output(ABC):
    """Base of outputs that run in the driver. One thread calls it: open, then write for each batch, then close.

    `write` returns when the batch is durable in the target. A batch may come again, whole or with other boundaries:
    the pairs say what is new. An error stops this output's query and no other.
    """

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]
    runs: ClassVar[Literal["driver", "spark"]] = "driver"

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    def open(self) -> None:  # noqa: B027 - most outputs have nothing to open
        """Get ready. Raises `WrongInput` for a target that cannot be, `Held` for one that another process writes."""

    @abstractmethod
    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch. Raises `Unsupported` for a control that this output does not handle, naming the way out."""

    def close(self) -> None:  # noqa: B027 - see open
        """Let go of everything; callable twice."""


class SparkOutput(ABC):
    """Base of outputs that run in Spark: they are given the micro-batch as a DataFrame."""

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]
    runs: ClassVar[Literal["driver", "spark"]] = "spark"

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    @abstractmethod
    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch of typed rows; it may come again with the same id."""
