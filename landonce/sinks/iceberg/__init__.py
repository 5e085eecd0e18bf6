"""The Iceberg sink: workers write files, and the driver adds them and the position to a table in one commit.

config, sink      the description of the tables       driver      the tables as the driver sees them
catalog           opening a catalog, its errors       worker      one block
table, types      columns, partitions, properties     files, partitions   rows as data files, or as files for Spark
evolve            columns that records need           commit      a branch of a table: its marks, one atomic commit
check             whether a table is fit              marks       what a snapshot says of a pipeline
held, held_files  what a table holds, for an audit    spark       commits and writes by Spark, on a staging branch
operations        what an operator may decide         maintain, move_in   upkeep; taking over from another writer
"""
