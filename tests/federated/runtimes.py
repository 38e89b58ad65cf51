"""Flower's real runtimes on this machine's own address, each ended by its number: for the slow suite."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from saltflat.federated.flower.quiet import SILENT

HOST, PEM = "127.0.0.1", serialization.Encoding.PEM
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return found.getsockname()[1]


def around(home: Path, *paths: Path) -> dict[str, str]:
    """The environment of Flower's commands: quiet, at home in a folder of the test, with the sources in reach."""
    path = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"FLWR_HOME": str(home), "PYTHONPATH": path, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return {**os.environ, **SILENT, **own, "OMP_NUM_THREADS": "1"}


@contextmanager
def started(command: Sequence[Any], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process in a group of its own, which is ended with all its children."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=file, env=env, cwd=log.parent, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen, number: int = signal.SIGTERM) -> None:
    """End a process and what it started; Flower's own helpers leave when their parent is gone."""
    for how, seconds in ((number, 10), (signal.SIGKILL, 10)):
        if process.poll() is None:
            os.killpg(process.pid, how)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue


def answers(port: int, log: Path, seconds: float = 90) -> None:
    """Wait until something listens at the port."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as tried:
            if tried.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nobody listens at {port}: {log.read_text()[-2000:]}")


def connection(home: Path, name: str, port: int, ca: Path | None = None) -> None:
    """Tell the ``flwr`` command where the SuperLink is."""
    home.mkdir(parents=True, exist_ok=True)
    how = "insecure = true" if ca is None else f'root-certificates = "{ca}"'
    home.joinpath("config.toml").write_text(
        f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{HOST}:{port}"\n{how}\n'
    )


def credentials(folder: Path, nodes: int) -> None:
    """An authority, the SuperLink's certificate for this machine, and a key for each node."""
    folder.mkdir()
    root, server = _key(), _key()
    authority = _certificate("an authority of this test", root, root, None)
    (folder / "ca.crt").write_bytes(authority.public_bytes(PEM))
    (folder / "server.pem").write_bytes(_certificate("superlink", server, root, authority).public_bytes(PEM))
    (folder / "server.key").write_bytes(_private(server, serialization.PrivateFormat.PKCS8))
    for k in range(nodes):
        own = _key()
        (folder / f"node-{k}").write_bytes(_private(own, serialization.PrivateFormat.OpenSSH))
        public = own.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"node-{k}.pub").write_bytes(public)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(PEM, form, serialization.NoEncryption())


def _certificate(name: str, own: Any, signer: Any, issuer: x509.Certificate | None) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is None:
        usage = {name: name in ("key_cert_sign", "crl_sign") for name in _USAGES}
        built = built.add_extension(x509.KeyUsage(**usage), critical=True)
        built = built.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False
        )
    else:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        built = built.add_extension(signed, critical=False)
    return built.sign(signer, hashes.SHA384())


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
