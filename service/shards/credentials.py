"""What a router presents to shards, and which shards it trusts.

Short-lived certificates and tokens are replaced while the router runs, so their files are watched.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from service.config import ServiceSettings, SettingsError
from service.security.watched_files import WatchedFiles

Metadata = tuple[tuple[str, str], ...]


class ShardCredentials:
    """The token and the certificates of a router, as their files are now."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Reads the files that the settings name.

        Raises:
          SettingsError: A file cannot be used.
        """
        self._token: WatchedFiles[str] | None = None
        self._channel: WatchedFiles[grpc.ChannelCredentials] | None = None
        token = settings.shard_token
        authorities = settings.shard_ca
        chain = settings.tls_cert
        key = settings.tls_key
        try:
            if token is not None:
                self._token = WatchedFiles(
                    [token], lambda: token.read_text(encoding="utf-8-sig").strip(), "shard_token"
                )
            if authorities is not None:
                files = [file for file in (authorities, chain, key) if file is not None]
                self._channel = WatchedFiles(
                    files, lambda: _channel_credentials(authorities, chain, key), "shard_ca"
                )
        except (OSError, ValueError) as problem:
            raise SettingsError(
                f"--shard-token, --shard-ca, --tls-cert or --tls-key: {problem}"
            ) from problem

    def channel(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of new connections: another object once the files have changed;
        None: plain text.
        """
        if self._channel is None:
            return None
        return self._channel.value()

    def metadata(self) -> Metadata:
        """Returns the metadata of a call."""
        if self._token is None:
            return ()
        return (("authorization", f"Bearer {self._token.value()}"),)


def _channel_credentials(
    authorities: Path, chain: Path | None, key: Path | None
) -> grpc.ChannelCredentials:
    """Reads the files.

    Raises:
      OSError: A file cannot be read.
      ValueError: A file is no PEM of its kind, or the key does not match the certificate, such as
        between the replacements of the two.
    """
    authorities_pem = authorities.read_bytes()
    chain_pem = _content(chain)
    key_pem = _content(key)

    # gRPC looks at the content only when it connects: OpenSSL checks it now, so that a wrong file
    # ends the start, and a half replaced pair is not used.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authorities)
        if chain is not None and key is not None:
            # Without a password, OpenSSL prompts on the terminal.
            context.load_cert_chain(chain, key, password=lambda: b"")
    except ssl.SSLError as problem:
        files = [str(file) for file in (authorities, chain, key) if file is not None]
        raise ValueError(
            f"{files} are not authorities of shards and, if set, a certificate chain and its key "
            f"without a password, all as PEM: {problem}"
        ) from problem
    return grpc.ssl_channel_credentials(authorities_pem, key_pem, chain_pem)


def _content(file: Path | None) -> bytes | None:
    if file is None:
        return None
    return file.read_bytes()
