"""The types of records whose schemas mark the key of an event: asked before a start, of the topics and the registry."""

from __future__ import annotations

from landonce.config.dedup import Dedup
from landonce.read.formats import RecordType
from landonce.read.sample import first_records
from landonce.sinks.parts import Parts


def known_types(parts: Parts) -> tuple[RecordType, ...]:
    """What schemas say of the key. Nothing, if the file says it itself.

    Schemas in files are all that there are. With a registry, the schemas of some records say it; if these are not enough, the newest ones of
    the subjects in which producers register the schemas of these topics.
    """
    dedup, format_ = parts.config.dedup, parts.decoding.format
    if dedup is None or not dedup.marked:
        return ()
    found = format_.types((), ())
    if not found:
        values = [each.value for each in first_records(parts.source(), parts.consumer)]
        found = format_.types(values, ())
        if lacking := _lacking(dedup, found):
            found = format_.types(values, _subjects(parts, lacking))
    return found


def _lacking(dedup: Dedup, found: tuple[RecordType, ...]) -> list[str]:
    return [name for name in dedup.marked if not any(name in ("", each.name) for each in found)]


def _subjects(parts: Parts, names: list[str]) -> list[str]:
    """By the ways in which producers name subjects: by the topic, by the topic and the type, by the type."""
    topics = [topic for topic, _ in parts.source().topic_ids]
    named = [subject for name in names if name for topic in topics for subject in (f"{topic}-{name}", name)]
    return list(dict.fromkeys([*(f"{topic}-value" for topic in topics), *named]))
