"""`databus bench`: run a benchmark of the checkout."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from databus.cli._app import AsJson, app, say_json


def _benchmarks() -> dict[str, str]:
    """Names of benchmarks to their modules. Raises `InputError` where there is no checkout around us."""
    import databus
    from databus.core import InputError

    root = Path(databus.__file__).parents[2]
    if not (root / "benchmarks" / "figures.py").is_file():
        raise InputError("benchmarks are not installed with databus; run this from a checkout with `make env`")
    sys.path.insert(0, str(root))
    names = sorted(path.stem for path in (root / "benchmarks").glob("[a-z]*.py") if path.stem != "figures")
    return {name.replace("_", "-"): f"benchmarks.{name}" for name in names}


@app.command(epilog="Example: databus bench latency --json")
def bench(
    name: Annotated[str, typer.Argument(help="A benchmark, `all`, or `list`.")],
    scale: Annotated[float, typer.Option(help="1.0 measures what docs/benchmarks.md reports; less is shorter.")] = 1.0,
    workload: Annotated[
        str | None, typer.Option(help="What the backlog is made of, where a benchmark has several; see its module.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Which database server, such as mysql-8.0 or mariadb-10.11, where there is one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure databus against peers and limits, in the same run on the same data."""
    from importlib import import_module
    from inspect import signature

    from databus.core import InputError
    from databus.operate import configure_logs

    known = _benchmarks()
    if name == "list":
        for benchmark in known:
            typer.echo(benchmark)
        return
    if name != "all" and name not in known:
        raise InputError(f"no benchmark called {name!r}; there are {', '.join(known)}")
    options = {key: value for key, value in (("workload", workload), ("server", server)) if value is not None}
    configure_logs(level="warning")  # what is measured may run in this process; the output is figures alone
    for benchmark in known if name == "all" else [name]:
        figures = import_module(known[benchmark]).figures
        unknown = options.keys() - signature(figures).parameters.keys()
        if unknown:
            raise InputError(f"the benchmark {benchmark} has no --{min(unknown)}")
        if not as_json:
            typer.echo(benchmark)
        for figure in figures(scale, **options):
            if as_json:
                say_json({"bench": benchmark, **figure.to_json()})
            else:
                typer.echo(_line(figure))


def _line(figure: Any) -> str:
    value = f"{figure.value:,.0f}" if abs(figure.value) >= 100 else f"{figure.value:,.3g}"
    line = f"  {figure.name:<44} {value:>14} {figure.unit:<10}"
    if figure.ratio is not None:
        line += f" {figure.ratio:6.2f} of {figure.peer} ({figure.peer_value:,.4g} {figure.unit})"
    return line
