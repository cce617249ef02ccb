"""What tasks do for the output `http`. Start with `HttpWriter`."""

from databus.sinks.http._bodies import BodyForm
from databus.sinks.http._signature import headers_of_request, key_of_secret
from databus.sinks.http._writer import HttpWriter

__all__ = [
    "BodyForm",
    "HttpWriter",
    "headers_of_request",
    "key_of_secret",
]
