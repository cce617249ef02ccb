"""Signatures of requests, as Standard Webhooks 1.0 has them (github.com/standard-webhooks), for which receivers in all
languages have libraries: HMAC-SHA-256 over `id.timestamp.body`.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

_PREFIX: Final = "whsec_"


def key_of_secret(secret: str) -> bytes:
    """The key that a secret stands for: behind `whsec_` in base64, else the text itself.

    Raises `ValueError` for what is empty or no base64.
    """
    if not secret.startswith(_PREFIX):
        key = secret.encode()
    else:
        text = secret.removeprefix(_PREFIX)
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            raise ValueError(f"what stands behind {_PREFIX} is no base64") from None
    if not key:
        raise ValueError("it is empty")
    return key


def headers_of_request(request_id: str, at_s: int, body: bytes, keys: Sequence[bytes]) -> Mapping[str, str]:
    """The headers that say which request this is and, for each of the keys, who made it at that second."""
    headers = {"Idempotency-Key": request_id, "webhook-id": request_id, "webhook-timestamp": str(at_s)}
    if keys:
        signed = b".".join((request_id.encode(), str(at_s).encode(), body))
        made = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
        headers["webhook-signature"] = " ".join(f"v1,{signature}" for signature in made)
    return headers
