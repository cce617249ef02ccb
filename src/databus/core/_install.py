"""How what is missing is installed. databus is installed from a clone of its repository, not from a registry."""


def how_to_install(extra: str) -> str:
    """What to say where a package of one of our extras is missing.

    >>> how_to_install("kafka")
    "in your clone of databus, run pip install '.[kafka]'"
    """
    return f"in your clone of databus, run pip install '.[{extra}]'"
