"""`databus dead-letters`: rows that targets refuse, of a pipeline's outputs and of clients of the library."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from databus.cli._app import AsJson, app, printable, say_json, utc
from databus.cli._file import DEFAULT_FILE, File, FileTyper

if TYPE_CHECKING:
    from databus.client import ClientLetters
    from databus.pipeline import OutputLetters, Replayed

_REASONS_SHOWN_MAX: Final = 3
_SHOWN_CHARS_MAX: Final = 200

letters = FileTyper(no_args_is_help=True, help="List, show, replay or drop rows that a target refuses.")
app.add_typer(letters, name="dead-letters")

OutputName = Annotated[
    str,
    typer.Argument(
        help="The output; or the folder of a client's dead letters: a path with a `/`, or a URI.", metavar="OUTPUT"
    ),
]
Tables = Annotated[list[str] | None, typer.Argument(help="Tables, * standing for anything; all of them.")]


@letters.command("list", epilog="Example: databus dead-letters list databus.yml")
def list_letters(
    folder: Annotated[str | None, typer.Argument(help="The folder of a client's dead letters.")] = None,
    pipeline: File = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Say how many dead letters each table of each output has, or of a client."""
    counts: dict[tuple[str, str], int] = {}
    for output in _kept_by_all(folder, pipeline):
        for file in output.files():
            counts[output.name, file.source] = counts.get((output.name, file.source), 0) + file.count
    if as_json:
        say_json([{"output": name, "table": table, "letters": count} for (name, table), count in counts.items()])
        return
    for (name, table), count in counts.items():
        typer.echo(f"{name}  {table}  {count}")
    if not counts:
        typer.echo("no dead letters")


@letters.command(epilog="Example: databus dead-letters show search main.orders")
def show(output: OutputName, tables: Tables = None, pipeline: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Show the dead letters of an output: the place of each, why it is one, and its row. Long values are cut, and say
    how long they are; `--json` shows all.
    """
    kept = _kept_by(output, pipeline)
    _say_if_none(kept, tables or ())
    for of_table in kept.read(tables or ()):
        for letter in of_table.letters:
            if as_json:
                shown = {"table": of_table.source, "pair": letter.pair, "id": letter.id, "reason": letter.reason}
                say_json({**shown, "at_us": letter.at_us, "row": json.loads(letter.row)})
                continue
            place = f"at {letter.pair[0]}/{letter.pair[1]}, {utc(letter.at_us)}"
            typer.echo(f"{printable(of_table.source)} {_cut(letter.id)} {place}")
            typer.echo(f"  {_cut(letter.reason)}\n  {printable(_cut_row(letter.row))}")


def _kept_by(output: str, pipeline: Path) -> "ClientLetters | OutputLetters":
    """The letters of an output, or of a client's folder."""
    from databus.client import ClientLetters
    from databus.pipeline import OutputLetters, load_pipeline

    if "/" in output or ClientLetters.is_folder(Path(output)):
        return ClientLetters(output)
    return OutputLetters(load_pipeline(pipeline), output)


def _kept_by_all(folder: str | None, pipeline: Path) -> "Sequence[ClientLetters | OutputLetters]":
    from databus.client import ClientLetters
    from databus.pipeline import load_pipeline, outputs_with_letters

    return outputs_with_letters(load_pipeline(pipeline)) if folder is None else [ClientLetters(folder)]


def _say_if_none(letters: "ClientLetters | OutputLetters", tables: Sequence[str]) -> None:
    """Tables that have none may be misspelt; it is no error, since their letters may be written meanwhile."""
    if not letters.files(tables):
        others = ", ".join(sorted({file.source for file in letters.files()}))
        of_tables = f" of {', '.join(tables)}" if tables else ""
        there = f"; there are of {others}" if others else ""
        typer.echo(f"{letters.name}: no dead letters{of_tables}{there}", err=True)


def _cut(text: str) -> str:
    """The beginning of a long text, and how long it is; as it may stand on a terminal."""
    if len(text) <= _SHOWN_CHARS_MAX:
        return printable(text)
    return f"{printable(text[:_SHOWN_CHARS_MAX])}... ({len(text):,} characters; --json shows all)"


def _cut_row(row: str) -> str:
    """A row with its long values cut."""
    if len(row) <= _SHOWN_CHARS_MAX:
        return row
    values: dict[str, Any] = json.loads(row)
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    cut = {name: _cut(text) for name, text in texts.items() if len(text) > _SHOWN_CHARS_MAX}
    return json.dumps({**values, **cut}, ensure_ascii=False, separators=(",", ":")) if cut else row


@letters.command(epilog="Example: databus dead-letters replay search")
def replay(output: OutputName, tables: Tables = None, pipeline: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Write dead letters once more. Those that are refused again stay, and the exit code is 1; the pipeline may run
    meanwhile. Those of a client are delivered by itself: at once if it runs, else when it is started.
    """
    kept = _kept_by(output, pipeline)
    _say_if_none(kept, tables or ())
    done = kept.replay(tables or ())
    if isinstance(done, int):
        if as_json:
            say_json({"folder": output, "asked": done})
        elif done:
            typer.echo(
                f"{output}: {done} dead letters are delivered once more by the client that runs, or the next one"
            )
        return
    if as_json:
        say_json({"output": output, **done._asdict()})
    else:
        typer.echo(f"{output}: {done.written} written{_refused(done)}")
        if done.refused:
            typer.echo(f"`databus dead-letters show {pipeline} {output}` shows what is left")
    if done.refused:
        raise typer.Exit(1)


def _refused(done: "Replayed") -> str:
    """How many of how many were refused again, and why: the reasons that most of them have."""
    if not done.refused:
        return ""
    reasons = [f"{_cut(reason)} ({count})" for reason, count in [*done.reasons.items()][:_REASONS_SHOWN_MAX]]
    more = "; and for other reasons" if len(done.reasons) > len(reasons) else ""
    return f", {done.refused} of {done.written + done.refused} refused again: {'; '.join(reasons)}{more}"


@letters.command(epilog="Example: databus dead-letters drop search main.orders")
def drop(
    output: OutputName,
    tables: Tables = None,
    pipeline: File = DEFAULT_FILE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget dead letters. In an index their rows stay missing, or old, until they change again; web hooks and topics
    never get their changes, nor do clients.
    """
    kept = _kept_by(output, pipeline)
    _say_if_none(kept, tables or ())
    count = sum(file.count for file in kept.files(tables or ()))
    if count and not yes:
        typer.confirm(f"{output}: drop {count} dead letters?", abort=True, err=True)
    dropped = kept.drop(tables or ())
    if as_json:
        say_json({"output": output, "dropped": dropped})
        return
    typer.echo(f"{output}: {dropped} dropped")
