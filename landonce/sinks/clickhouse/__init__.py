"""The ClickHouse sink: rows are sent as Arrow over HTTP, one block as one insert. After any doubt the table is asked which rows it holds.

config, sink      the description of a table          driver      the table as the driver sees it
table, columns    what the server says about it       worker      one insert
types             what a column takes, exactly        probe       which rows the table holds
check             whether a table is fit              connection  queries; `wire` sends one request, never again
settings          what every request carries          replies     what an answer means
"""
