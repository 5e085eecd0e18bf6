"""Plan: which offsets go into which block, and what a block is called. Pure: no I/O is imported here.

`ranges` and `blocks` are the values, `packing` cuts and packs ranges into blocks, `cases` decides what to do with a
range that comes from outside.
"""
