"""A test's own authority, and certificates of every kind that a client must take or refuse, as PEM files."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_HERE = "subjectAltName=DNS:localhost,IP:127.0.0.1"
REFUSED = {
    "wrong_host": "does not name the host 127.0.0.1",
    "expired": "has expired",
    "self_signed": "is signed by itself",
    "unknown_authority": "is signed by an authority that is not known here",
}
"""The servers' certificates that no client may take, and what landonce says of each."""


@dataclass(frozen=True)
class Certificates:
    """In one folder. A server's file holds its certificate and then its key, a client's only the certificate."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def client(self) -> Path:
        """Of the user `ann`, signed by the authority."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        return self.folder / "client.key"

    @property
    def server_key(self) -> Path:
        """Of the good server, without its certificate."""
        return self.folder / "good.key"

    def server(self, kind: str = "good") -> Path:
        """`good`, or one of `REFUSED`."""
        return self.folder / f"{kind}.both.pem"


def certificates(folder: Path) -> Certificates:
    """Makes all of them, with the `openssl` command."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    def own(name: str, *more: str) -> None:
        names = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *_NEW, "-days", "2", *names, *more)

    def signed(name: str, extension: str, *, by: str = "authority", days: int = 2, common: str = "server") -> None:
        (folder / f"{name}.ext").write_text(extension)
        openssl("req", *_NEW, "-subj", f"/CN={common}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        authority = ("-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial", "-days", str(days))
        openssl("x509", "-req", "-in", f"{name}.csr", *authority, "-extfile", f"{name}.ext", "-out", f"{name}.pem")

    own("authority")
    own("other")
    own("self_signed", "-addext", _HERE)
    signed("good", _HERE)
    signed("wrong_host", "subjectAltName=DNS:elsewhere.example")
    signed("expired", _HERE, days=-1)
    signed("unknown_authority", _HERE, by="other")
    signed("client", "extendedKeyUsage=clientAuth", common="ann")
    for each in ("good", *REFUSED):
        both = (folder / f"{each}.pem").read_text() + (folder / f"{each}.key").read_text()
        (folder / f"{each}.both.pem").write_text(both)
    return Certificates(folder)
