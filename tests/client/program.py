"""A program by its path, for who forks modules by their names: `python -m tests.client.program FILE ...`."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
