"""Where tests that play dice begin."""

import os
import random
import zlib


def seed_of(name: str) -> int:
    """The seed for what is called `name`: the same in each run, so that `make test` is the same twice.

    `DATABUS_SEED=7` gives 7, as a failure's message tells; `DATABUS_SEED=random` another one each time, as `make soak`
    does.
    """
    said = os.environ.get("DATABUS_SEED", "")
    if said == "random":
        return random.SystemRandom().randrange(1 << 32)
    return int(said) if said else zlib.crc32(name.encode())
