"""The ClickHouse sink: rows are sent as Arrow over HTTP, one block as one insert. After any doubt the table is asked which rows it holds.

config, sink   the description of a table                     driver      the table as the driver sees it
table          what the server says about it; rows as sent    worker      one insert
types          what a column takes, exactly                   probe       which rows the table holds
nested         bytes and absent values inside of a column     documents   JSON, Variant and Dynamic
check          whether a table is fit                         connection  one request, never again; queries
settings       what every request carries                     replies     what an answer means
keyed          rows that records change by a key              shards      one table on several servers
evolve         columns that records need                      address     names of servers, tables and queries
held           what the table holds, for an audit             keeper_map  a ledger beside the rows
operations     what an operator may decide                    move_in     taking over from another writer
"""
