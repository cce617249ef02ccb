"""What tests, benchmarks and demos are made with; shipped, so that users' plugins can be put through the same.

Heavy parts are imported from their modules by those who need them.
"""

from databus.testing._clock import FakeClock
from databus.testing._feed import Feed
from databus.testing._output_harness import OutputHarness
from databus.testing._output_suite import OUTPUT_CHECKS
from databus.testing._proxy import TcpProxy
from databus.testing._relay_process import RelayProcess
from databus.testing._source_suite import SourceHarness, SourceSuite

__all__ = [
    "OUTPUT_CHECKS",
    "FakeClock",
    "Feed",
    "OutputHarness",
    "RelayProcess",
    "SourceHarness",
    "SourceSuite",
    "TcpProxy",
]
