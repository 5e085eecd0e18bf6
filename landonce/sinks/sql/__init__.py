"""The SQL sink: a block's rows and its row in the ledger change in one transaction of the target database.

config, sink          the description of a table            driver, table   the table as the driver sees it
columns, types        what a column takes, exactly          worker          one block; rows that the database refuses
check_table, rights   whether a table is fit                writer          the port to a database, and its transaction
fingerprint           which table it is; was it altered     postgres, rows, mysql, ydb    the transaction in each database
ddl, statements       SQL as text                           databases       opening each database
"""
