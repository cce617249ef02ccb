"""What Delta's engine says is wrong with a table, as errors of ours that say what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from databus.core import CorruptData, DatabusError, LockHeld, UnsupportedFeature
from databus.disk import Location

_UNSUPPORTED: Final = re.compile(r"Unsupported table features required: \[(.*)\]")


@contextmanager
def engine_errors(path: Location, owner: str, verb: str) -> Iterator[None]:
    """Turn the engine's errors into ours, which say what to do. owner: the source of the table; verb: what is done."""
    from deltalake.exceptions import (
        CommitFailedError,
        DeltaError,
        DeltaProtocolError,
        SchemaMismatchError,
        TableNotFoundError,
    )

    try:
        yield
    except DatabusError:
        raise
    except CommitFailedError as error:
        if (trouble := path.trouble(error)) is not None:
            raise trouble from None
        if (lacking := _UNSUPPORTED.search(str(error))) is not None:
            raise UnsupportedFeature(
                f"{path}: could not {verb} the table: somebody has given it {lacking[1]}, which databus does "
                f"not write. Take it away (`ALTER TABLE ... DROP FEATURE`), or have the table made anew by "
                f"`databus rebuild`"
            ) from error
        raise LockHeld(
            f"{path}: could not {verb} the table, because another process writes it ({error}); a table has "
            f"one writer. Stop the other one, and start this pipeline again"
        ) from error
    except (TableNotFoundError, DeltaProtocolError, SchemaMismatchError, DeltaError, OSError, ValueError) as error:
        if (trouble := path.trouble(error)) is not None:
            raise trouble from None
        raise CorruptData(
            f"{path}: could not {verb} the table of {owner}: {error}. Nothing was committed. Restore "
            f"the folder; or have the table made anew by `databus rebuild`"
        ) from error
