"""Certificates for loopback, made on the spot: good ones, expired ones, a client's."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
NAMES = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    private_key: Path


class Authority:
    """Signs certificates; trusted by whoever is given its own."""

    def __init__(self, folder: Path, name: str = "authority"):
        self._folder, self._name = (
            folder,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        )
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, self._key, starts=-DAY, ends=DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *, ends: datetime.timedelta = DAY) -> Pair:
        """Makes a certificate that began two days ago; a negative end is in the past."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _builder(subject, self._name, key, starts=-2 * DAY, ends=ends).add_extension(
            x509.SubjectAlternativeName(NAMES), critical=False
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        pair.private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    starts: datetime.timedelta,
    ends: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + starts)
        .not_valid_after(now + ends)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
