"""What tasks do for the output `http`. Start with `HttpWriter`."""

from databus.tasks.http._bodies import BODIES, FORMATS, BodyForm
from databus.tasks.http._client import Answer, Target
from databus.tasks.http._signature import headers_of_request, key_of_secret
from databus.tasks.http._writer import HttpWriter

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
