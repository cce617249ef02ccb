"""Secrets kept out of what is shown: in logs, in a configuration, and in the text of errors.

A name says that its value is secret (`is_secret_name`). Text has no names: there passwords in addresses and DSNs, what
follows a secret name, and tokens of well-known shapes are hidden (`hide_in_text`). A run hides them where text comes
in, in its events and its status (`hide_in_answer`), so that files, sockets and pages have what is left.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_SECRET_NAME: Final = re.compile(
    r"passw(or)?d|secret|token|authorization|credential|private_?key|api_?key|salt|cookie|headers|environment"
    r"|jaas|(account|access|storage|shared|master|encryption|customer)[._]?key(?!_id)|(^|[._])sas($|[._])|(^|[._])key\.pem",
    re.I,
)
"""In the name of an option, or of one around it. Any header of a web hook may be secret, so all of them count."""
_CHARS_MAX: Final = 100_000
"""Of a text in an answer: a message may quote a row, and a search in megabytes takes seconds."""
_BEHIND_CHARS: Final = 2_000
"""A secret that begins before the cut may end so far behind it, and is still found."""
_REFERENCES: Final = re.compile(r"(\$\{[^{}]*\})+")
_LOG_IN: Final = re.compile(r"(?<=//)[^/?#\s]+@")
_BEHIND_HOST: Final = re.compile(r"(?<=://)([^/?#\s]+)[/?](?!\s|$)\S*")
"""In an address of HTTP: with many services the path of a web hook is its secret."""

WORDS: Final = frozenset(
    {
        *("state", "status", "doing", "error", "type", "kind", "remedy", "event", "by", "at", "id", "project"),
        *("output", "outputs", "table", "tables", "source", "query", "physical", "snapshots", "where"),
        *("unchanged", "changed", "added", "removed", "not_compared", "breaks", "unbalanced", "only", "marks"),
    }
)
"""Fields of events and answers whose strings are words of databus, or names in a configuration or a schema. Those of
all others are free text.
"""

_IN_SENTENCES: Final = (
    "input|field|extra|value|string|expected|should|must|may|is|are|was|has|needs?|required|missing|invalid|unknown"
    "|unexpected|not|set|use|send|say|look|write|give|see|the|an?|it|this|that|of|in|to|for|from"
)
"""What follows `password: ` in a message about an option of that name."""

_IN_TEXT: Final = (
    # A password, behind a colon, may contain `/` or `@`: everything up to the last `@` of the word is hidden. Without a
    # colon, an `@` behind the path's first `/` is of the path, as in s3://lake/orders@v5.
    (
        re.compile(r"(?<=://)(?:[^\s/?#:]{0,200}:\S{1,2000}|[^\s:@]{0,200}:\S{1,2000}|[^\s/?#]{1,2000})@"),
        f"{HIDDEN}@",
    ),
    # A DSN without a scheme, such as root:hunter2@tcp(db:3306).
    (re.compile(r"(?<![^\s'\"`(\[{<=,;])[^\s:/@'\"`(\[{<=,;]{1,200}:[^\s/@][^\s@]{0,200}@(?=[\w\[(.])"), f"{HIDDEN}@"),
    # The query of an address has a signature, or a key; of a path alone, what looks like one.
    (re.compile(r"(://[^\s?]{1,2000}\?)(?!\(hidden\))[^\s'\"`<>)]{1,8000}(?<=[\w%])"), rf"\1{HIDDEN}"),
    (re.compile(r"(?<=\?)[\w.~%+-]{1,200}=[^\s'\"`<>)]{1,8000}(?<=[\w%])"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)"), HIDDEN),
    # `Authorization: Bearer TOKEN` says what to send.
    (re.compile(r"\b(bearer|basic|negotiate)\s+(?!(?-i:TOKEN)\b)[\w.~+/=-]{4,}", re.I), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"((?:passw(?:or)?d|passphrase|pwd|secret|token|authorization|credentials?|signature"
            r"|(?:private|api|access|account|shared|master)[._-]?key"
            # Short ones only where a word begins, or a hump of one: there are people in Kansas: 5.
            r"|(?-i:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?:sas|sig))['\"]?\s{0,3}[=:]\s{0,3})"
            # A server's "using password: YES" is no secret; what follows a scheme was hidden above.
            r"(?!(?:yes|no|none|null)\b|\(hidden\)|(?:bearer|basic|negotiate)\b"
            rf"|(?<=: )(?:{_IN_SENTENCES})[.,;:)]?(?:\s|$))"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&)\]}'\"]+)",
            re.I,
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(r"\b(?:eyJ[\w-]{8,}\.[\w.-]+|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_\w{20,}|xox[abprs]-[\w-]{10,})"),
        HIDDEN,
    ),
)


def is_secret_name(name: str) -> bool:
    """Whether the value under a name is secret; the name of a file is not.

    >>> is_secret_name("db_password"), is_secret_name("token_file")
    (True, False)
    """
    return _SECRET_NAME.search(name) is not None and not name.endswith("_file")


def hide_in_text(text: str) -> str:
    """Text for people, such as an error's message, without what looks like a secret. Where it cannot tell, it hides.

    >>> hide_in_text("mysql://root:hunter2@db/shop: access denied (using password: YES)")
    'mysql://(hidden)@db/shop: access denied (using password: YES)'
    >>> hide_in_text("DSN host=db password='hunter 2', user:pw@tcp(db:3306), Authorization: Bearer abcdef")
    'DSN host=db password=(hidden), (hidden)@tcp(db:3306), Authorization: Bearer (hidden)'
    >>> hide_in_text("https://bucket/x.parquet?X-Amz-Signature=0a1b: 403")
    'https://bucket/x.parquet?(hidden): 403'
    >>> hide_in_text("this relay wants a token: send the header `Authorization: Bearer TOKEN`")
    'this relay wants a token: send the header `Authorization: Bearer TOKEN`'
    >>> hide_in_text("sources.shop.password: Input should be a string; s3://lake/orders@v5: WHERE id = ?OR")
    'sources.shop.password: Input should be a string; s3://lake/orders@v5: WHERE id = ?OR'
    """
    for pattern, shown in _IN_TEXT:
        text = pattern.sub(shown, text)
    return text


def hide_in_answer(value: Any, name: str = "") -> Any:
    """An event, a status or another answer in JSON, without what looks like a secret in its free text (see `WORDS`).

    >>> hide_in_answer({"state": "failed", "refused": {"shop/t": "http://me:pw@db"}, "rows": 1})
    {'state': 'failed', 'refused': {'shop/t': 'http://(hidden)@db'}, 'rows': 1}
    >>> hide_in_answer({"only": ["shop/a:b@c"], "tables": ["shop/a:b@c"]})
    {'only': ['shop/a:b@c'], 'tables': ['shop/a:b@c']}
    """
    if isinstance(value, Mapping):
        return {key: hide_in_answer(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        shown = [hide_in_answer(inner, name) for inner in value]
        return shown if isinstance(value, list) else tuple(shown)
    if not isinstance(value, str) or name in WORDS:
        return value
    if len(value) <= _CHARS_MAX:
        return hide_in_text(value)
    return f"{hide_in_text(value[: _CHARS_MAX + _BEHIND_CHARS])[:_CHARS_MAX]}… ({len(value)} characters)"


def hide_in_config(value: Any, *, is_secret: bool = False) -> Any:
    """A configuration as it is written, to be shown: a reference is no secret, nor is the name of a file.

    >>> hide_in_config({"password": "hunter2", "token_file": "t", "url": "http://me:pw@db/", "secret": "${S}"})
    {'password': '(hidden)', 'token_file': 't', 'url': 'http://(hidden)@db/', 'secret': '${S}'}
    >>> hide_in_config({"url": "https://hooks.example/T0/x?key=1", "account_key": "x", "key": ["id"]})
    {'url': 'https://hooks.example/(hidden)', 'account_key': '(hidden)', 'key': ['id']}
    """
    if isinstance(value, dict):
        return {
            name: hide_in_config(inner, is_secret=is_secret or is_secret_name(str(name)))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [hide_in_config(inner, is_secret=is_secret) for inner in value]
    if isinstance(value, str) and _REFERENCES.fullmatch(value):
        return value
    if is_secret and value not in (None, "") and not isinstance(value, bool):
        return HIDDEN
    if not isinstance(value, str):
        return value
    if value.startswith(("http://", "https://")):
        value = _BEHIND_HOST.sub(rf"\1/{HIDDEN}", value)
    return _LOG_IN.sub(f"{HIDDEN}@", value)
