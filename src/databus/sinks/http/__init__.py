"""What tasks do for the output `http`. Start with `HttpWriter`."""

from databus.sinks.http._bodies import BODIES, FORMATS, BodyForm
from databus.sinks.http._client import Answer, Target
from databus.sinks.http._signature import headers_of_request, key_of_secret
from databus.sinks.http._writer import HttpWriter

__all__ = [
    "BODIES",
    "FORMATS",
    "Answer",
    "BodyForm",
    "HttpWriter",
    "Target",
    "headers_of_request",
    "key_of_secret",
]
