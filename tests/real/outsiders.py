"""Outsiders of a run: libp2p connections, each under its own key, that are opened and held in silence."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dht.identity import Identity
from dht.statement import digest_of

EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")  # libp2p's: the host key, and its signature of the key
SIGNED_BEFORE = b"libp2p-tls-handshake:"
PUBLIC_KEY = b"\x08\x01\x12\x20"  # protobuf: an Ed25519 key of 32 bytes
MULTISTREAM, TLS, YAMUX = b"/multistream/1.0.0\n", b"/tls/1.0.0\n", b"/yamux/1.0.0\n"
AT_ONCE = 16
AGAIN_SECONDS = 5.0
HANDSHAKE_SECONDS_MAX = 20.0


def _said(*words: bytes) -> bytes:
    return b"".join(bytes([len(word)]) + word for word in words)


def _octets(data: bytes) -> bytes:
    return b"\x04" + bytes([len(data)]) + data


@contextlib.contextmanager
def _credentials(identity: Identity, folder: Path) -> Iterator[ssl.SSLContext]:
    """Yield a TLS context with this key, as libp2p makes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    own = identity.libp2p_private_key()[-32:]
    words = _octets(PUBLIC_KEY + own) + _octets(identity.sign(SIGNED_BEFORE + public))
    name, now = x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, "1")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.UnrecognizedExtension(EXTENSION, b"\x30" + bytes([len(words)]) + words), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["libp2p"])
    path = folder / identity.peer_id
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context.load_cert_chain(path)
    path.unlink()
    yield context


async def _shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
    writer.write(_said(MULTISTREAM, TLS))
    await reader.readexactly(len(_said(MULTISTREAM, TLS)))
    await writer.start_tls(context)
    writer.write(_said(MULTISTREAM, YAMUX))
    await writer.drain()
    await reader.readexactly(len(_said(MULTISTREAM, YAMUX)))


class Crowd:
    """Many outsiders that open each closed connection again, as often as the other side lets them."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self._place = host, port
        self._count = count
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []
        self.opened = 0
        self.held = self.most_held = 0

    async def __aenter__(self) -> Crowd:
        self._folder = tempfile.TemporaryDirectory()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._stay(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._folder.cleanup()

    async def _stay(self, number: int) -> None:
        identity = Identity(digest_of(b"outsider", number.to_bytes(8, "big")))
        with _credentials(identity, Path(self._folder.name)) as context:
            while True:
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    await self._connect(context)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _connect(self, context: ssl.SSLContext) -> None:
        """Hold one connection until the other side closes it."""
        async with self._gate, asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(*self._place)
            try:
                await _shake_hands(reader, writer, context)
            except BaseException:
                writer.transport.abort()
                raise
        self.opened += 1
        self.held += 1
        self.most_held = max(self.most_held, self.held)
        try:
            while await reader.read(1 << 16):
                pass
        finally:
            self.held -= 1
            writer.transport.abort()
