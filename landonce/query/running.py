"""The running query, as Spark knows it: its plan, its sources, and the offset log of its checkpoint.

PySpark shows none of this, so it is asked for in the JVM. What is asked for is public there, and the tests ask a real Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

from landonce.config.secrets import redact
from landonce.errors import SourceRefused, SourceUnavailable, TopicMissing
from landonce.jvm import spark_errors
from landonce.protocol import query_refusals as refusals
from landonce.protocol.match_ranges import Span
from landonce.query.examine import KAFKA_SCAN, elements
from landonce.tls import TlsKeys, refusal_of_java

_QUERY_ID = "sql.streaming.queryId"
_KAFKA_STREAM = "KafkaMicroBatchStream"
_SINK = "WriteToMicroBatchDataSource"
_KAFKA_OPTION = "kafka."
_SECONDS = 60
_REFUSALS = ("AuthorizationException", "AuthenticationException")
"""What waiting does not fix. Everything else may pass."""
_KEYS = TlsKeys("`kafka.ssl.truststore.location`", "`kafka.ssl.keystore.location`")


@dataclass(frozen=True)
class QuerySource:
    """One Kafka source of the query. Its options may hold passwords."""

    stream: Any = field(repr=False)
    options: Mapping[str, str] = field(repr=False)
    initial: str
    """Where the query began, as Spark's JSON."""

    @property
    def client(self) -> dict[str, str]:
        """The options of Kafka's own client."""
        return {
            name[len(_KAFKA_OPTION) :]: value
            for name, value in self.options.items()
            if name.lower().startswith(_KAFKA_OPTION)
        }


@dataclass(frozen=True)
class RunningQuery:
    """The query that a micro-batch belongs to."""

    execution: Any = field(repr=False)
    jvm: Any = field(repr=False)

    @property
    def run(self) -> str:
        """One start of the query."""
        return str(self.execution.runId().toString())

    @property
    def name(self) -> str | None:
        name: str | None = self.execution.name()
        return name

    @property
    def plan(self) -> Any:
        """What it does, with its sources as leaves, and without the sink on top."""
        plan = self.execution.logicalPlan()
        return plan.children().apply(0) if plan.nodeName().startswith(_SINK) else plan

    def sources(self) -> tuple[QuerySource, ...]:
        """Its sources, in the order of the offset log."""
        found = []
        for scan in _scans(self.plan):
            stream = scan.stream()
            if stream.getClass().getSimpleName() != _KAFKA_STREAM:
                raise _not_kafka(stream)
            options = dict(scan.relation().options().asCaseSensitiveMap())
            _keeps_all(options)
            found.append(QuerySource(stream, options, stream.initialOffset().json()))
        streams = self.execution.sources()
        if [each.stream.toString() for each in found] != [streams.apply(at).toString() for at in range(streams.size())]:
            raise _not_kafka(streams)
        return tuple(found)

    def spans(self, batch: int, sources: tuple[QuerySource, ...]) -> tuple[Span, ...]:
        """Where each source began and ends in this batch. One that has not brought anything yet has an empty one."""
        ends, starts = self._logged(batch), self._logged(batch - 1) if batch else None
        if ends is None or (batch and starts is None):
            raise refusals.query(
                f"the checkpoint {self.execution.resolvedCheckpointRoot()} does not say where batch {batch} begins and ends",
                "start the query with a new checkpoint, at the ledger's position (`starting_offsets`)",
            )
        spans = []
        for at, source in enumerate(sources):
            end = ends.apply(at)
            if not end.isDefined():
                spans.append(Span("{}", "{}", "{}"))
                continue
            start = starts.apply(at) if starts is not None else None
            begun = start.get().json() if start is not None and start.isDefined() else source.initial
            spans.append(Span(begun, end.get().json(), source.initial))
        return tuple(spans)

    def _logged(self, batch: int) -> Any | None:
        found = self.execution.offsetLog().get(batch)
        return found.get().offsets() if found.isDefined() else None


def running_query(frame: DataFrame) -> RunningQuery:
    """The query whose micro-batch this is."""
    jdf = getattr(frame, "_jdf", None)
    if jdf is None:
        raise refusals.query("it runs through Spark Connect, where the query's own offset log cannot be reached")
    context = frame.sparkSession.sparkContext
    query = context.getLocalProperty(_QUERY_ID)
    jvm: Any = context._jvm
    found = None
    if query:
        active = jdf.sparkSession().sharedState().activeStreamingQueries()
        found = active.get(jvm.java.util.UUID.fromString(query))
    if found is None:
        raise refusals.query(
            "it is not known to Spark", "pass `exactly_once(…)` to `writeStream.foreachBatch`, and start the query"
        )
    return RunningQuery(found, jvm)


def _not_kafka(stream: Any) -> Exception:
    return refusals.query(f"it reads from {stream.toString()}, and only Kafka has offsets that can be read again")


def _keeps_all(options: Mapping[str, str]) -> None:
    loses = next((value for name, value in options.items() if name.lower() == "failondataloss"), "true")
    if loses.lower() == "false":
        raise refusals.query(
            "with failOnDataLoss=false Spark skips what was deleted before it was read, and says nothing",
            "leave failOnDataLoss at its default",
        )


def _scans(plan: Any) -> list[Any]:
    if plan.nodeName() == KAFKA_SCAN:
        return [plan]
    return [scan for child in elements(plan.children()) for scan in _scans(child)]


@dataclass(frozen=True)
class Brokers:
    """What the brokers of one source say: which cluster, and which topics."""

    cluster_id: str
    topic_ids: Mapping[str, str]


class Admin:
    """Asks the brokers of one source, with the source's own options and through the Kafka client that Spark itself uses: whatever
    lets Spark in lets landonce in."""

    def __init__(self, jvm: Any, client: Mapping[str, str]) -> None:
        self._jvm, self._client = jvm, client
        self._open: Any = None

    def ask(self, topics: tuple[str, ...]) -> Brokers:
        listed = self._jvm.java.util.ArrayList()
        for topic in topics:
            listed.add(topic)
        seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
        try:
            with spark_errors():
                self._open = self._open or self._opened()
                cluster = self._open.describeCluster().clusterId().get(_SECONDS, seconds)
                described = self._open.describeTopics(listed).allTopicNames().get(_SECONDS, seconds)
        except Py4JJavaError as error:
            raise _named(error, topics, self._client.get("bootstrap.servers", "")) from None
        except Py4JError as error:
            raise refusals.query(f"Kafka's client cannot be reached in the JVM: {redact(str(error)[:300])}") from None
        # Java writes ids in the alphabet for URLs, librdkafka in the plain one; the ledger knows them as librdkafka does.
        ids = {each: str(described.get(each).topicId().toString()) for each in topics}
        plain = str.maketrans("-_", "+/")
        return Brokers(str(cluster), {topic: found.translate(plain) for topic, found in ids.items()})

    def close(self) -> None:
        if self._open is not None:
            self._open.close()

    def _opened(self) -> Any:
        properties = self._jvm.java.util.HashMap()
        for name, value in self._client.items():
            properties.put(name, value)
        return self._jvm.org.apache.kafka.clients.admin.Admin.create(properties)


def _causes(error: Any) -> str:
    """What a Java error says, and what each of its causes says."""
    texts = list[str]()
    while error is not None:
        texts.append(str(error.toString()))
        error = error.getCause()
    return "\n".join(texts)


def _named(error: Py4JJavaError, topics: tuple[str, ...], servers: str) -> Exception:
    said = redact(str(error.java_exception.toString())[:300])
    refused = refusal_of_java(_causes(error.java_exception), f"Kafka, one of the brokers {servers}", _KEYS)
    if refused is not None:
        refused.command = refused.command.replace("{file}", "the options of the query's source")
        return refused
    if "UnknownTopicOrPartition" in said:
        return TopicMissing(
            f"of the topics {', '.join(topics)}, one does not exist: {said}",
            safe="Nothing was written.",
            command="create the topic, or correct the query's source",
        )
    if any(each in said for each in _REFUSALS):
        return SourceRefused(
            f"Kafka refuses to describe the cluster and the topics: {said}",
            safe="Nothing was written.",
            command="give the query's user the right DESCRIBE on the topics, or correct the query's source",
        )
    return SourceUnavailable(f"Kafka did not describe the cluster and the topics: {said}")
