"""Mutually authenticated TLS 1.3 between hosts, and making certificates for it.

Both parties name one certificate authority (CA) and show a certificate that it signed: the server one for its host
name or address, the client one for clients. A certificate of one kind is not accepted as the other.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aero.errors import check_file
from aero.two_party.runtime.addresses import is_loopback, split_address
from aero.two_party.runtime.settings import TwoPartyError

if TYPE_CHECKING:
    from cryptography import x509

VALID_DAYS = 365
LARGEST_PEM = 1 << 20
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_OUT_OF_DATE = (9, 10)
FILES = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")


def tls_context(certificate: Path, key: Path, ca: Path, *, server: bool) -> ssl.SSLContext:
    """A TLS context that shows our certificate and demands one of the peer's that `ca` signed. TwoPartyError for
    unusable files."""

    def no_password() -> str:
        """Replaces OpenSSL's prompt on the terminal, which would wait for ever."""
        raise TwoPartyError(f"--key {key} is encrypted, which is not supported; decrypt it (`openssl pkey`)")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    for name, path in (("--certificate", certificate), ("--key", key), ("--ca", ca)):
        _check_private(name, path, 0o077 if name == "--key" else 0o022)
    try:
        context.load_cert_chain(certificate, key, no_password)
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TwoPartyError(
            f"certificate {certificate}, key {key} and CA {ca} cannot be used together "
            f"({error.reason or error}); they must be PEM files, the key that of the certificate"
        ) from None
    return context


def _check_private(name: str, path: Path, forbidden: int) -> None:
    """TwoPartyError unless `path`, also what it links to, belongs to this user or root, without `forbidden` rights."""
    try:
        check_file(path, LARGEST_PEM)
        link, found = path.lstat(), path.stat()
    except FileNotFoundError:
        raise TwoPartyError(
            f"{name} {path} does not exist; make certificates with `aero certificates FOLDER`"
        ) from None
    if strangers := {link.st_uid, found.st_uid} - {0, os.geteuid()}:
        raise TwoPartyError(
            f"{name} {path} belongs to user {strangers.pop()}, who could change it; copy it to a file of your own"
        )
    if found.st_mode & forbidden:
        who, remedy = ("read", "600") if forbidden & 0o044 else ("changed", "644")
        raise TwoPartyError(
            f"{name} {path} can be {who} by other users (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod {remedy} {path.resolve()}" + ("" if name != "--key" else ", or make new ones if others had it")
        )


def context_for(
    address: str, files: tuple[Path, Path, Path] | None, insecure: bool, *, server: bool
) -> ssl.SSLContext | None:
    """The TLS context for a link to or at `address`; None for plain TCP, only on this machine or if `insecure`.

    files: certificate, key and the CA's certificate.
    """
    if files is not None:
        return tls_context(*files, server=server)
    if insecure or is_loopback(split_address(address)[0]):
        return None
    raise TwoPartyError(
        f"{address} is not on this machine, and plain TCP between hosts is refused; give --certificate, --key and --ca "
        "(`aero certificates FOLDER` makes them), or --insecure for an unencrypted link"
    )


def describe(error: ssl.SSLError, peer: str) -> str:
    """One line on a TLS error; `peer` is "the server at HOST:PORT" or the like."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "check --ca on this side"
        if error.verify_code in _OUT_OF_DATE:
            remedy = "make new ones with `aero certificates FOLDER`, or set the clock of this machine"
        return f"{peer} showed a certificate that is refused ({error.verify_message}); {remedy}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "bad record mac" in reason or "decryption failed" in reason:
        return f"data on the link to {peer} was changed on the way (TLS: {reason}); run again"
    if "wrong version number" in reason or "http request" in reason:
        return f"{peer} does not speak TLS ({reason}); start both sides with certificates, or both without"
    return f"no TLS connection with {peer} ({reason}); are certificates given on both sides?"


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write a certificate authority and certificates for a server at `hosts` and for a client, with keys, to `folder`.

    hosts: names and addresses under which clients reach the server. Valid for a year. Keys are readable by their owner
    only. TwoPartyError if a host is neither a name nor an address, or one of the files is already there.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    folder, names = Path(folder), [_subject_name(host) for host in hosts]
    if there := [name for name in FILES if os.path.lexists(folder / name)]:
        raise TwoPartyError(f"{folder / there[0]} is already there; choose another folder, nothing was written")
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # clocks of two hosts differ
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aero CA")])

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, purpose: x509.ObjectIdentifier | None) -> bytes:
        """purpose: None for the CA's own certificate."""
        is_ca = purpose is None
        usage = x509.KeyUsage(not is_ca, False, False, False, False, is_ca, is_ca, False, False)
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
            (usage, True),
        ]
        if purpose is not None:
            extensions.append((x509.ExtendedKeyUsage([purpose]), False))
        if purpose == ExtendedKeyUsageOID.SERVER_AUTH:
            extensions.append((x509.SubjectAlternativeName(names), False))
        builder = x509.CertificateBuilder(authority_name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=VALID_DAYS))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    contents = {"ca.pem": certificate(authority_name, authority_key, None), "ca.key": private(authority_key)}
    for role, purpose in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("client", ExtendedKeyUsageOID.CLIENT_AUTH)):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"aero {role}")])
        contents[f"{role}.pem"] = certificate(name, key, purpose)
        contents[f"{role}.key"] = private(key)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        mode = 0o600 if name.endswith(".key") else 0o644
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)


_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


def _subject_name(host: str) -> x509.GeneralName:
    """The host in a certificate. TwoPartyError if no client could reach a server under it."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        # A name whose last part is a number is an address with a mistake in it.
        if not _HOST.fullmatch(host) or host.rpartition(".")[2].isdigit():
            raise TwoPartyError(
                f"--host {host[:100]!r} is neither a name nor an address of a host; of a name with other letters give "
                "the ASCII form (xn--...)"
            ) from None
        return x509.DNSName(host)
