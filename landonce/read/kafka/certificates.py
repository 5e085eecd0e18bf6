"""Why a handshake of TLS with a broker fails. librdkafka says that it does, and where, but not why."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from landonce.errors import CertificateRefused
from landonce.tls import TlsKeys, examine, load_certificate, refusal

_WHERE = re.compile(r"ssl://\[?([^\s/]+?)\]?:(\d+)/")
_OF_CERTIFICATES = ("certificate verify failed", "could not be verified", "alert")
"""What librdkafka says of the server's certificate, or of the client's."""
_FALSE = ("false", "f", "0")
"""As librdkafka reads them."""
_KEYS = TlsKeys(
    "`ssl.ca.location` in the options of Kafka",
    "`ssl.certificate.location` and `ssl.key.location` in the options of Kafka",
)


def certificate_refusal(error: KafkaError, who: str, options: Mapping[str, Any]) -> CertificateRefused | None:
    """The error if a broker's certificate is not trusted, or the broker does not accept the client's; None for other errors, and if the broker
    that failed has other certificates by now."""
    said = error.str()
    where = _WHERE.search(said)
    if where is None or not any(each in said for each in _OF_CERTIFICATES):
        return None
    host, port = where[1], int(where[2])
    try:
        found = examine(host, port, _context(options))
    except (OSError, ValueError):
        return None
    if found is None or ("ssl.keystore.location" in options and not isinstance(found, ssl.SSLCertVerificationError)):
        return (
            None  # Python opens no key store: what the broker says of the client's certificate is not said of that one
        )
    return refusal(found, f"{who}, broker {host}:{port}", host, _KEYS)


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """As librdkafka's options have it."""
    named = {name: str(value) for name, value in options.items()}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = named.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if named.get("enable.ssl.certificate.verification", "true").lower() in _FALSE:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if "ssl.ca.pem" in named:
        tls.load_verify_locations(cadata=named["ssl.ca.pem"])
    elif named.get("ssl.ca.location", "probe") != "probe":
        tls.load_verify_locations(named["ssl.ca.location"])
    else:
        tls.load_default_certs()
    certificate, key = (_pem(named, f"ssl.{each}") for each in ("certificate", "key"))
    if certificate and key:
        load_certificate(tls, f"{certificate}\n{key}", named.get("ssl.key.password", ""))
    return tls


def _pem(named: Mapping[str, str], option: str) -> str:
    if f"{option}.pem" in named:
        return named[f"{option}.pem"]
    place = named.get(f"{option}.location")
    return Path(place).read_text() if place else ""
