"""Who may do what with a dashboard: `principals.yml`, read and checked. Pure.

principals:
  - {name: ann, token_sha256: 9f86d0..., rights: [see, rows, control, admin], projects: ["*"]}
  - {name: billing, token_sha256: 60303a..., rights: [see], projects: [billing]}
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from databus.core import ConfigError
from databus.formats import lines_of, load_yaml

ALL_PROJECTS: Final = "*"


class DashboardRight(StrEnum):
    """What an endpoint requires. No right includes another."""

    SEE = "see"
    """States and numbers."""
    ROWS = "rows"
    """Values of rows, such as those of dead letters."""
    CONTROL = "control"
    """Reversible changes, from pause to replay; and the configuration."""
    ADMIN = "admin"
    """What cannot be undone."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or program that has signed in."""

    name: str
    rights: frozenset[DashboardRight]
    projects: frozenset[str]
    """The projects that it sees; with `ALL_PROJECTS` all of them."""
    token_sha256: str = field(default="", repr=False)
    """The hash of its token: with another token it is another principal, so that a token that was stolen and replaced
    leaves no session behind."""

    def sees(self, project: str | None) -> bool:
        """Whether it sees what belongs to this project. What belongs to no project, only those see who see all."""
        return ALL_PROJECTS in self.projects or (project is not None and project in self.projects)


OWNER: Final = Principal("owner", frozenset(DashboardRight), frozenset({ALL_PROJECTS}))
"""Who started the dashboard; without a file of principals the only one who can sign in."""


class _PrincipalEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")
    token_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rights: list[DashboardRight] = Field(min_length=1)
    projects: list[Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z][A-Za-z0-9_-]{0,63})$")]] = Field(
        min_length=1
    )


class _PrincipalsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    principals: list[_PrincipalEntry] = Field(min_length=1, max_length=1_000)


class Principals:
    """The principals of a file, found by their tokens."""

    def __init__(self, principals: Iterable[Principal]) -> None:
        self._by_hash = [(bytes.fromhex(principal.token_sha256), principal) for principal in principals]

    @classmethod
    def of(cls, value: Mapping[str, Any], where: str) -> "Principals":
        """Check what was read from YAML. Raises `ConfigError`. where: the file, for errors."""
        try:
            entries = _PrincipalsFile.model_validate(value).principals
        except ValidationError as error:
            raise ConfigError("\n".join(f"{where}: {line}" for line in lines_of(error, _PrincipalsFile))) from None
        for field_name in ("name", "token_sha256"):
            given = [getattr(entry, field_name) for entry in entries]
            twice = sorted({value for value in given if given.count(value) > 1})
            if twice:
                raise ConfigError(
                    f"{where}: principals: two have the {field_name} {twice[0]}; whose it is would be unclear"
                )
        return cls(
            Principal(entry.name, frozenset(entry.rights), frozenset(entry.projects), entry.token_sha256)
            for entry in entries
        )

    @classmethod
    def in_file(cls, path: Path) -> "Principals":
        """Read and check a file. Raises `ConfigError`."""
        return cls.of(load_yaml(path, "docs/dashboard.md shows one"), str(path))

    def by_token(self, token: str) -> Principal | None:
        """Whose token it is. All are compared, each in constant time, so that the time gives nothing away."""
        given = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        principals = [principal for known, principal in self._by_hash if hmac.compare_digest(known, given)]
        return principals[0] if principals else None

    def __contains__(self, principal: Principal) -> bool:
        """Whether it is still listed, with the same token, rights and projects."""
        return any(known == principal for _, known in self._by_hash)
