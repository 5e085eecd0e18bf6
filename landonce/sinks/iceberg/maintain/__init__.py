"""Upkeep of the Iceberg tables that a pipeline writes, safe while it runs: compaction, expiry, files that nobody needs.

compact     small files become large ones, in commits of their own; a pipeline that commits meanwhile tries again
expire      old snapshots go, but none that says where a pipeline stands, nor any between it and a head (`keep`)
orphans     files of drivers and workers that died go, but none that could still be committed (`orphans`)
"""
