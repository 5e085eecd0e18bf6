"""The SQL sink: a block's rows and its row in the ledger change in one transaction of the target database.

config, sink    the description of a table; opening its database     driver, table   the table as the driver sees it
types           what a column takes, exactly; columns of new tables  forms            values that records hold as text
                                                                     worker          one block; rows that the database refuses
check           whether a table is fit; `landonce check`             writer          a block's transaction; SQLite
fingerprint     which table it is; was it altered                    postgres, mysql, ydb    the transaction in each database
statements      SQL as text                                          held            what the table holds, for an audit
"""
