"""Certificates for tests of TLS: authorities of our own, and what they sign."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from databus.testing.servers import Certificates

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path

    @property
    def client(self) -> dict[str, str]:
        """As a client's options."""
        return {"certificate_file": str(self.certificate), "key_file": str(self.key)}

    @property
    def relay(self) -> dict[str, str]:
        """As a relay's options `tls`."""
        return self.client


class Authority:
    """Signs certificates; `ca` is its own. is_rsa: by keys that old database servers can read, too."""

    def __init__(self, folder: Path, name: str = "ca", *, is_rsa: bool = False) -> None:
        self.folder = folder
        self.is_rsa = is_rsa
        self._name = _named(name)
        self._key = self._new_key()
        self.ca = folder / f"{name}.pem"
        made = (
            _begun(self._name, self._name, self._key, (-1, 30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(
        self, name: str, hosts: tuple[str, ...] = ("localhost", "127.0.0.1"), days: tuple[int, int] = (-1, 30)
    ) -> Signed:
        """Write `name`.pem and `name`.key, each replaced at once, as a renewal does. days: its time, from now."""
        key = self._new_key()
        made = (
            _begun(_named(name), self._name, key, days)
            .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        signed = Signed(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        _replace(signed.certificate, made.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.TraditionalOpenSSL if self.is_rsa else serialization.PrivateFormat.PKCS8
        _replace(
            signed.key, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), mode=0o600
        )
        return signed

    def _new_key(self) -> Key:
        if self.is_rsa:
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return ec.generate_private_key(ec.SECP256R1())


def server_certificates(folder: Path) -> Certificates:
    """An authority, and what it signed for a database server of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder, is_rsa=True)
    signed = authority.sign("server", ("localhost",))
    return Certificates(authority.ca, signed.certificate, signed.key)


def _replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(subject: x509.Name, issuer: x509.Name, key: Key, days: tuple[int, int]) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=days[0]))
        .not_valid_after(now + dt.timedelta(days=days[1]))
    )
