"""Maintenance of the Iceberg tables that a pipeline writes, safe while it runs: compaction, expiry, files that nobody needs.

compact     small files become large ones, in commits of their own; a pipeline that commits meanwhile tries again
expire      old snapshots go, except those that hold a pipeline's position, and those between these and a head
files       files of drivers and workers that died go, except those that could still be committed
run         all of it, table by table, and what was done
"""
