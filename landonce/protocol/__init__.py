"""The protocol: every decision, and no I/O. Imports `errors` and nothing else of landonce.

values      ranges, blocks (plans, tokens, keys), packing (sizes, pace), receipt (fates, reasons), ledger (states, compare-and-set),
            block_rows (and claims), marks (and table statuses)
machine     batch: the life of a micro-batch, for every kind of sink. steps: its effects and replies. One policy per kind of sink:
            deduplicating, snapshot, transactional, claimed. Two sources of ranges: source (brokers), match_ranges (Spark)
workers     settle (deduplicating targets), transact (databases), push (wrapped sinks)
judgements  cases, target, own_ledger, query_refusals; operate: what an operator may decide
"""
