"""Options of the outputs `opensearch` and `elasticsearch`."""

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from databus.flow import BUCKETS_MAX, KeyChoice
from databus.plugins import KeyColumns, Names
from databus.sinks._letters import LettersConfig


class SearchConfig(LettersConfig):
    """Options of both outputs."""

    url: Names = Field(description="Addresses of nodes, each tried in turn.", examples=["https://search.internal:9200"])
    user: str | None = Field(None, description="User for HTTP's basic authentication.")
    password: SecretStr | None = Field(
        None,
        description="His password. Name it by reference.",
        examples=["${SEARCH_PASSWORD}", "${file:/run/secrets/search}"],
    )
    api_key: SecretStr | None = Field(
        None, description="An API key, in base64, in the place of user and password. Name it by reference."
    )
    ca_file: str | None = Field(
        None, description="PEM file of the authority behind the nodes' certificates, on every machine that runs tasks."
    )
    index: str = Field(
        "{table}",
        description="Name of a table's index. `{physical}`, `{db}` and `{table}` stand for the source's names. It "
        "is written in small letters, and holds one table.",
        examples=["{db}-{table}", "shop_{table}"],
    )
    aliases: list[str] = Field(
        default_factory=list, description="More names that a new index gets; as `index`.", examples=[["{table}_read"]]
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of new indices.", examples=[{"number_of_shards": 3}]
    )
    mapping: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Mappings of fields, by column, or by `db.table` and column, in the place of those that follow "
        "from the columns' types.",
        examples=[{"note": {"type": "text", "analyzer": "german"}, "main.orders": {"code": {"type": "keyword"}}}],
    )
    key: KeyColumns = None
    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description="What a deleted row does to its document: `hard` removes it; `soft` keeps it, with `_deleted` "
        "true.",
    )
    on_schema_change: Literal["follow", "ignore", "stop"] = Field(
        "follow",
        description="What a changed table does: `follow` gives the index the new columns and makes the documents that "
        "are there into rows of today; `ignore` writes new rows as they are now and leaves mapping and older documents "
        "alone; `stop`.",
    )
    on_error: Literal["halt", "retry", "dead_letter"] = Field(
        "halt",
        description="What to do about a row that the server refuses: stop the output; try the batch again; or keep the "
        "row as a dead letter (`databus dead-letters`), and go on.",
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="What to do where changes are missing and no snapshot is said to follow: stop, or go on, because "
        "you have asked for one or accept what the index shows.",
    )
    refresh: Literal["none", "wait", "force"] = Field(
        "none",
        description="When searches find what was written: `none`, when the index refreshes itself; `wait` has each "
        "batch wait for that; `force` refreshes at the end of each request, which costs the server most.",
    )
    buckets: int = Field(
        2, ge=1, le=BUCKETS_MAX, description="How many tasks write at a time, each the rows of some of the keys."
    )
    bulk_bytes_max: int = Field(
        5 << 20, ge=1 << 10, le=1 << 30, description="Largest bulk request, in bytes; a larger row has one of its own."
    )
    bulk_rows_max: int = Field(10_000, ge=1, le=1_000_000, description="Most rows of a bulk request.")
    connect_ms_max: int = Field(5_000, ge=1, le=600_000, description="Longest wait for a connection, in milliseconds.")
    request_ms_max: int = Field(30_000, ge=1, le=600_000, description="Longest wait for an answer, in milliseconds.")
    retry_ms_max: int = Field(
        30_000,
        ge=0,
        le=3_600_000,
        description="How long a node that is busy or gone is asked again before the batch is given up, in "
        "milliseconds; the query then tries it again.",
    )
    gc_deletes_s: int = Field(
        3_600,
        ge=60,
        le=604_800,
        description="How long the server remembers the versions of deleted documents, in seconds (`index.gc_deletes`): "
        "longer than a task that was given up for dead may go on writing.",
    )
    rewrite_documents_max: int = Field(
        1_000_000, ge=0, description="Most documents that a change of a table's schema may rewrite."
    )

    @property
    def is_refilled(self) -> bool:
        """See `OutputConfig.is_refilled`."""
        return True

    @property
    def key_choice(self) -> KeyChoice:
        """See `OutputConfig.key_choice`."""
        return KeyChoice(self.key or ())

    def form_of(self, source: str) -> Mapping[str, Any]:
        """See `OutputConfig.form_of`."""
        key = self.key.get(source) if isinstance(self.key, dict) else self.key
        return {"index": self.index, "key": key, "deletes": self.deletes}

    @property
    def ends_transactions(self) -> bool:
        """See `OutputConfig.ends_transactions`: what waits for the end of a large transaction is put then."""
        return True

    @field_validator("url")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise ValueError("expected http://host:port or https://host:port; `user` and `password` stand apart")
        return urls

    @field_validator("api_key")
    @classmethod
    def _is_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not re.fullmatch("[!-~]+", key.get_secret_value()):
            raise ValueError("it has blanks, line ends or other characters that no API key has")
        return key

    @model_validator(mode="after")
    def _is_one_identity(self) -> "SearchConfig":
        if self.api_key is not None and self.user is not None:
            raise ValueError("`api_key` and `user`: give one of them")
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` go together")
        return self


class OpenSearchConfig(SearchConfig):
    """Indices of OpenSearch, one for each table, with a document for each row. See docs/search.md."""

    type: Literal["opensearch"] = "opensearch"


class ElasticsearchConfig(SearchConfig):
    """Indices of Elasticsearch, one for each table, with a document for each row. See docs/search.md."""

    type: Literal["elasticsearch"] = "elasticsearch"
