"""The settings that the guarantee needs. They go with every request, so that no profile changes them.

A user may add settings. One that contradicts these is a `ConfigError`. A setting that an older server does not know is not sent; one that the
user's profile fixes to another value is `TargetRefused`.
"""

from __future__ import annotations

from collections.abc import Mapping

from landonce.errors import ConfigError, TargetRefused

_NEVER_ROWS = 1 << 40
_NEVER_BYTES = 1 << 50

_WHOLE: dict[str, str] = {
    # A query of ten seconds would have more than 100 headers, and Python reads no such answer.
    "send_progress_in_http_headers": "0",
    # What a profile could use to cut a result short without an error, or to show another one.
    "limit": "0",
    "offset": "0",
    "max_rows_to_read": "0",
    "max_bytes_to_read": "0",
    "max_result_rows": "0",
    "max_result_bytes": "0",
    "max_rows_to_group_by": "0",
    "max_rows_in_distinct": "0",
    "max_rows_in_join": "0",
    "max_bytes_in_join": "0",
    "max_rows_in_set": "0",
    "max_bytes_in_set": "0",
    "max_rows_to_sort": "0",
    "max_bytes_to_sort": "0",
    "read_overflow_mode": "throw",
    "result_overflow_mode": "throw",
    "timeout_overflow_mode": "throw",
    "group_by_overflow_mode": "throw",
    "distinct_overflow_mode": "throw",
    "join_overflow_mode": "throw",
    "set_overflow_mode": "throw",
    "sort_overflow_mode": "throw",
    "empty_result_for_aggregation_by_empty_set": "0",
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "session_timezone": "",
    "enable_parallel_replicas": "0",
}

INSERT: dict[str, str] = {
    **_WHOLE,
    # One INSERT is one block, so that a token means the same rows every time.
    "max_insert_block_size": str(_NEVER_ROWS),
    "max_insert_block_size_rows": str(_NEVER_ROWS),
    "max_insert_block_size_bytes": "0",
    "min_insert_block_size_rows": str(_NEVER_ROWS),
    "min_insert_block_size_bytes": str(_NEVER_BYTES),
    "input_format_max_block_size_bytes": "0",
    "use_strict_insert_block_limits": "0",
    "max_insert_threads": "1",
    "max_partitions_per_insert_block": "0",
    "optimize_on_insert": "0",
    # The answer comes when the rows are there, not before.
    "async_insert": "0",
    "wait_for_async_insert": "1",
    "http_write_exception_in_output_format": "0",
    "insert_shard_id": "0",
    "distributed_foreground_insert": "1",
    # Rows come as a form, however large.
    "http_max_multipart_form_data_size": str(_NEVER_BYTES),
    # The token counts, in the table and in the views behind it.
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "force_enable",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    # A value lands as it is, or not at all.
    "insert_null_as_default": "1",
    "input_format_null_as_default": "0",
    "input_format_arrow_allow_missing_columns": "0",
    "input_format_arrow_case_insensitive_column_matching": "0",
    "input_format_arrow_import_nested": "0",
    "date_time_overflow_behavior": "throw",
    "decimal_check_overflow": "1",
    "input_format_try_infer_dates": "0",
    "input_format_try_infer_datetimes": "0",
    "input_format_json_try_infer_numbers_from_strings": "0",
    "input_format_json_read_bools_as_numbers": "0",
    "input_format_json_read_bools_as_strings": "0",
    "input_format_json_read_numbers_as_strings": "0",
    "input_format_json_infer_array_of_dynamic_from_array_of_different_types": "1",
    "json_type_escape_dots_in_keys": "0",
    "type_json_skip_duplicated_paths": "0",
    "cast_ipv4_ipv6_default_on_conversion_error": "0",
    "input_format_ipv4_default_on_conversion_error": "0",
    "input_format_ipv6_default_on_conversion_error": "0",
}

READ: dict[str, str] = {
    **_WHOLE,
    "http_max_multipart_form_data_size": str(_NEVER_BYTES),
    "final": "0",
    "apply_deleted_mask": "1",
    "use_query_cache": "0",
    "select_sequential_consistency": "1",
    "skip_unavailable_shards": "0",
    "force_primary_key": "0",
    "force_index_by_date": "0",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_compression_method": "none",
}

MAY_BE_UNKNOWN = frozenset(
    {
        "cast_ipv4_ipv6_default_on_conversion_error",
        "deduplicate_insert",
        "deduplicate_insert_select",
        "distributed_foreground_insert",
        "enable_parallel_replicas",
        "http_write_exception_in_output_format",
        "input_format_arrow_case_insensitive_column_matching",
        "input_format_arrow_import_nested",
        "input_format_ipv4_default_on_conversion_error",
        "input_format_json_infer_array_of_dynamic_from_array_of_different_types",
        "input_format_json_read_bools_as_strings",
        "input_format_ipv6_default_on_conversion_error",
        "input_format_max_block_size_bytes",
        "json_type_escape_dots_in_keys",
        "max_insert_block_size_bytes",
        "max_insert_block_size_rows",
        "output_format_arrow_compression_method",
        "session_timezone",
        "type_json_skip_duplicated_paths",
        "use_strict_insert_block_limits",
    }
)
"""Newer than the oldest supported server, or obsolete. Every other setting must be known."""

ASKING = {name: READ[name] for name in READ if name not in MAY_BE_UNKNOWN}
"""For the query that reads the server's settings."""

_OURS = {"insert_deduplication_token", "query_id", "session_id", "query", "wait_end_of_query", "readonly"}


def refuse_conflicts(asked: Mapping[str, object]) -> None:
    """A user's settings may repeat those of the guarantee, but not contradict them."""
    fixed = {**READ, **INSERT}
    for name, value in asked.items():
        if name in _OURS or (name in fixed and as_text(value) != fixed[name]):
            raise ConfigError(f"the ClickHouse setting {name} belongs to the guarantee and cannot be set to {value!r}")


def to_send(wanted: Mapping[str, str], known: Mapping[str, tuple[str, bool]], user: str) -> dict[str, str]:
    """The settings that this server knows. `known`: the value of each on the server, and whether the profile fixes it."""
    sent = {}
    for name, value in wanted.items():
        if name not in known and name in MAY_BE_UNKNOWN:
            continue
        if name not in known:
            raise TargetRefused(
                f"this ClickHouse does not know the setting {name}, or hides it from the user {user}.",
                safe="Nothing was written.",
                command="use ClickHouse 24.10 or later, and a profile without filters",
            )
        there, fixed = known[name]
        if not fixed:
            sent[name] = value
        elif there != value:
            raise TargetRefused(
                f"the profile of the ClickHouse user {user} fixes {name} to {there!r}; landonce needs {value!r}.",
                safe="Nothing was written.",
                command=f"give {user} a profile that does not constrain {name}",
            )
    return sent


def as_text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
