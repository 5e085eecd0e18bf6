"""The protocol: every decision, and no I/O. Imports `errors` and nothing else of landonce.

values      ranges, blocks (plans, tokens), keys, packing, source, receipt, reasons, ledger (states), block_rows, claims, marks
driver      steps (effects and replies), batch (the spine of all machines); one file per kind of sink tells the life of a
            micro-batch: inserts, snapshots, transactions, pushes; query_batches for ranges that Spark brings; pace
worker      settle (deduplicating targets), transact (databases), push (wrapped sinks)
judgements  cases, match_ranges, target, own_ledger, table_status, swap; operate: what an operator may decide
"""
