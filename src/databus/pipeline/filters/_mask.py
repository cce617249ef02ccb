"""Filter `mask`: columns whose values must not be seen, of any number of tables, before any output.

`hash` keeps apart what is apart, and joins what is equal: HMAC-SHA-256 of the value as text, keyed by the salt, in
hexadecimal. `redact` leaves nothing, `truncate` the beginning. NULL stays NULL.
"""

import hmac
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator

from databus.flow import Mask
from databus.pipeline.filters._tablewide import Columns
from databus.plugins import FilterConfig, TablesFilter, TablesFilterConfig

_SALT_BYTES_MIN: Final = 16


class MaskConfig(TablesFilterConfig):
    """Columns whose values must not be seen, of any number of tables, before any output."""

    type: Literal["mask"] = "mask"
    hash: Columns = Field(
        default_factory=list,
        description="Columns that hold a hash instead: HMAC-SHA-256 of the value as text, in 64 hexadecimal digits. "
        "Equal values have equal hashes. Columns of a key may be hashed.",
        examples=[["email", "customer_id"]],
    )
    redact: Columns = Field(default_factory=list, description="Columns that are NULL instead.", examples=[["phone"]])
    truncate: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Columns of text or binary of which so many first characters or bytes stay.",
        examples=[{"name": 1}],
    )
    salt: SecretStr | None = Field(
        None,
        description="Secret of `hash`, at least 16 bytes; another salt makes other hashes. Name it by reference: it is "
        "in no log, state or message.",
        examples=["${MASK_SALT}", "${file:/run/secrets/salt}"],
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        named = [name.lower() for name in (*self.hash, *self.redact, *self.truncate)]
        if not named:
            raise ValueError("give at least one of `hash`, `redact` and `truncate`")
        twice = [name for name in named if named.count(name) > 1]
        if twice:
            raise ValueError(f"column {twice[0]} stands twice")
        if self.hash and (self.salt is None or len(self.salt.get_secret_value().encode()) < _SALT_BYTES_MIN):
            raise ValueError(f"hash needs a `salt` of at least {_SALT_BYTES_MIN} bytes, such as ${{MASK_SALT}}")
        return self


class MaskFilter(TablesFilter):
    """See `MaskConfig`."""

    config_model: ClassVar[type[FilterConfig]] = MaskConfig

    config: MaskConfig

    @cached_property
    def in_tasks(self) -> Mask:
        """See `TablesFilter.in_tasks`."""
        given = self.config
        return Mask(
            **self.about,
            hash=tuple(given.hash),
            redact=tuple(given.redact),
            truncate=given.truncate,
            salt=b"" if given.salt is None else given.salt.get_secret_value().encode(),
        )

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`. The salt goes into a hash that nothing else is made of."""
        salt = None if self.config.salt is None else self.config.salt.get_secret_value()
        told = None if salt is None else hmac.new(salt.encode(), b"databus: which salt is it", "sha256").hexdigest()
        return {**super().form(branch), "salt": told}
