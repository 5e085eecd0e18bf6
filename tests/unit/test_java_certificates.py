"""What Java says of certificates, in landonce's words. Real refusals of Kafka's own client are in tests/integration/test_kafka_tls.py."""

from __future__ import annotations

import pytest

from landonce.tls import TlsKeys, refusal_of_java

CAUSE = "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("java.security.cert.CertificateExpiredException: NotAfter: Wed Nov 18", "has expired"),
        ("java.security.cert.CertificateNotYetValidException: NotBefore: Wed Nov 18", "is not valid yet"),
        ("java.security.cert.CertificateRevokedException: Certificate has been revoked", "was revoked"),
        (
            "CertificateException: No subject alternative DNS name matching kafka.example found.",
            "name the host kafka.example.",
        ),
        ("CertificateException: No name matching kafka.example found", "name the host kafka.example."),
        ("No subject alternative names matching IP address 127.0.0.1 found", "name the host 127.0.0.1."),
        ("CertificateException: No subject alternative names present", "name the host of the broker."),
        ("PKIX path validation failed: signature check failed", "authority that is not known here"),
        ("ValidatorException: PKIX path building failed: unable to find valid", "authority that is not known here"),
        ("SSLHandshakeException: Received fatal alert: bad_certificate", "asks for a certificate of the client"),
        ("SSLHandshakeException: Received fatal alert: certificate_required", "asks for a certificate of the client"),
        ("SSLHandshakeException: Received fatal alert: handshake_failure", "or both share no cipher or version of TLS"),
    ],
)
def test_the_reason_is_said(said: str, words: str) -> None:
    found = refusal_of_java(CAUSE + said, "Kafka", TlsKeys("A", "B"))
    assert found is not None
    assert words in found.what


@pytest.mark.parametrize(
    "said", ["TimeoutException: Timed out waiting for a node assignment", "SSLException: Unsupported or unrecognized"]
)
def test_another_error_is_none_of_certificates(said: str) -> None:
    assert refusal_of_java(CAUSE + said, "Kafka", TlsKeys("A", "B")) is None
