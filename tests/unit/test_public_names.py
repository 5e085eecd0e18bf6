"""The public names of the package, pinned: taking one away or adding one is a decision."""

import subprocess
import sys

import landonce


def test_the_public_names() -> None:
    assert landonce.__all__ == [
        "NotPushed",
        "Pipeline",
        "PushedBlock",
        "Totals",
        "WrappedSink",
        "clickhouse",
        "errors",
        "exactly_once",
        "iceberg",
        "load",
        "run_pipeline",
        "sql",
        "wrap",
    ]
    for name in landonce.__all__:
        assert getattr(landonce, name) is not None


def test_importing_the_package_does_not_load_spark() -> None:
    code = "import sys, landonce; sys.exit('pyspark' in sys.modules or 'confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
