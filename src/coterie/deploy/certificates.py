"""Keys and certificates of a federation: its own authority, the server's certificate, a key pair for each site."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID = timedelta(days=5 * 365)
"""How long certificates are valid."""
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Pair:
    """A private key and what belongs to it, a certificate or a public key, as the bytes of their files."""

    private: bytes
    public: bytes


def library() -> Any:
    """The package cryptography; ``CoterieError`` where it is not installed."""
    try:
        import cryptography
    except ImportError as error:
        raise CoterieError("coterie deploy needs Flower: pip install 'coterie[flower]'.") from error
    return cryptography


def server_identity(address: str) -> tuple[Pair, Pair]:
    """An authority of the federation's own, and the server's certificate signed by it.

    Parameters
    ----------
    address : str
        Host name or IP address that the sites know the server by; the certificate also holds for this machine itself.

    Returns
    -------
    tuple of Pair
        The authority and the server, both as PEM.
    """
    library()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority_key, server_key = _key(), _key()
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address[:64])])
    begin = datetime.now(UTC) - timedelta(days=1)  # clocks differ

    def certificate(name: x509.Name, key: EllipticCurvePrivateKey, authority: bool) -> x509.CertificateBuilder:
        usage = {
            "digital_signature": True,
            "key_cert_sign": authority,
            "crl_sign": authority,
            "content_commitment": False,
            "key_encipherment": False,
            "data_encipherment": False,
            "key_agreement": False,
            "encipher_only": False,
            "decipher_only": False,
        }
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + VALID)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    root = certificate(authority_name, authority_key, True).sign(authority_key, hashes.SHA384())
    names = [_general_name(host) for host in dict.fromkeys([address, *LOOPBACK])]
    server = (
        certificate(server_name, server_key, False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return Pair(_pem(authority_key), _certificate_pem(root)), Pair(_pem(server_key), _certificate_pem(server))


def site_identity(name: str) -> Pair:
    """A key pair for a site (ECDSA P-384), as ``ssh-keygen`` writes it; the name is the public key's comment."""
    library()
    from cryptography.hazmat.primitives import serialization

    key = _key()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Pair(private, public + b" " + name.encode() + b"\n")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, at no time anybody else."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return pem


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
