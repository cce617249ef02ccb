"""databus: change data capture for Python and Spark.

Start with docs/architecture.md; the packages below are listed there in the order in which data flows through them.
"""

__version__ = "0.1.0"
