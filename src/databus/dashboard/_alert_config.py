"""What `--alerts FILE` says: rules of one's own, and where alerts go. Pure, but for the reading of the file.

alerts:
  - {metric: databus_output_lag_seconds, labels: {output: orders}, above: 60, for_ms: 30000, severity: critical,
     text: "The shop sees old orders; call the team of orders."}
alertmanager: http://127.0.0.1:9093
heartbeat_url: https://hc-ping.com/...
smtp: {host: mail.example, from: databus@example.com, to: [ops@example.com]}
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from databus.core import ConfigError
from databus.dashboard._alert_rules import RULES, Is, Rule
from databus.dashboard._outbox import MailServer
from databus.dashboard._samples import SAMPLED
from databus.formats import lines_of, load_yaml

_RULES_MAX: Final = 500


def _regular(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern[:100]!r} is no regular expression: {error}") from None
    return pattern


def _known(metric: str) -> str:
    if metric not in SAMPLED:
        near = difflib.get_close_matches(metric, SAMPLED, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(SAMPLED))}"
        raise ValueError(f"the dashboard has no metric {metric[:100]!r}; {hint}")
    return metric


_Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1_000)]
_Address = Annotated[str, StringConstraints(pattern=r"^[^\s@<>,;\x00-\x1f]+@[^\s@<>,;\x00-\x1f]+$", max_length=254)]


class _RuleEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")
    metric: Annotated[str, AfterValidator(_known)]
    labels: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
        Annotated[str, StringConstraints(max_length=500), AfterValidator(_regular)],
    ] = Field(default_factory=dict, max_length=20)
    above: float | None = Field(None, allow_inf_nan=False)
    below: float | None = Field(None, allow_inf_nan=False)
    absent: Literal[True] | None = None
    for_ms: int = Field(0, ge=0, le=7 * 86_400_000)
    severity: Literal["critical", "warning", "info"] = "warning"
    text: _Line

    @model_validator(mode="after")
    def _says_one(self) -> "_RuleEntry":
        if sum(bound is not None for bound in (self.above, self.below, self.absent)) != 1:
            raise ValueError("say one of `above`, `below` and `absent`")
        return self

    def to_rule(self) -> Rule:
        name = self.name or "".join(word.capitalize() for word in self.metric.removeprefix("databus_").split("_"))
        compared = Is.ABOVE if self.above is not None else Is.BELOW if self.below is not None else Is.ABSENT
        value = self.above if self.above is not None else self.below or 0.0
        return Rule(name, self.metric, compared, value, self.text, self.for_ms / 1e3, self.severity, dict(self.labels))


class _Smtp(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    host: _Line
    port: int | None = Field(None, ge=1, le=65_535)
    security: Literal["none", "starttls", "tls"] = "starttls"
    sender: _Address = Field(alias="from")
    to: list[_Address] = Field(min_length=1, max_length=100)
    user: _Line | None = None
    password_file: Path | None = None

    @model_validator(mode="after")
    def _hides_its_password(self) -> "_Smtp":
        if (self.user is None) != (self.password_file is None):
            raise ValueError("`user` and `password_file` go together")
        if self.user is not None and self.security == "none":
            raise ValueError("a password is sent only where `security` is starttls or tls")
        return self


class _AlertsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    alerts: list[_RuleEntry] = Field(default_factory=list, max_length=_RULES_MAX)
    alertmanager: str | None = None
    heartbeat_url: str | None = None
    smtp: _Smtp | None = None


@dataclass(frozen=True)
class Alerting:
    """The rules, and where alerts go besides a web hook."""

    rules: Sequence[Rule] = RULES
    """Those that are built in, unless one of the file has the same name, then those of the file."""
    alertmanager: str | None = None
    """The address of Prometheus' Alertmanager; None: it gets nothing."""
    heartbeat_url: str | None = None
    """An address that gets a request each minute: a service there raises an alarm when the dashboard falls silent."""
    mail: MailServer | None = None
    """Where mails of alerts are handed over; None: none are sent."""

    @classmethod
    def of(cls, value: Mapping[str, Any], where: str, folder: Path) -> "Alerting":
        """Check what was read from YAML. Raises `ConfigError`. where: the file, for errors; folder: its folder."""
        try:
            file = _AlertsFile.model_validate(value)
        except ValidationError as error:
            raise ConfigError("\n".join(f"{where}: {line}" for line in lines_of(error, _AlertsFile))) from None
        own = [entry.to_rule() for entry in file.alerts]
        names = [rule.name for rule in own]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"{where}: alerts: two are called {twice[0]}; give each a `name` of its own")
        built_in = [rule for rule in RULES if rule.name not in names]
        return cls([*built_in, *own], file.alertmanager, file.heartbeat_url, _mail(file.smtp, where, folder))

    @classmethod
    def in_file(cls, path: Path) -> "Alerting":
        """What a file says."""
        return cls.of(load_yaml(path, "docs/dashboard.md shows one"), str(path), path.parent)


def _mail(smtp: _Smtp | None, where: str, folder: Path) -> MailServer | None:
    if smtp is None:
        return None
    password = None if smtp.password_file is None else folder / smtp.password_file
    if password is not None and not password.is_file():
        raise ConfigError(f"{where}: smtp.password_file: {password}: No such file")
    return MailServer(smtp.host, smtp.sender, tuple(smtp.to), smtp.security, smtp.port, smtp.user, password)
