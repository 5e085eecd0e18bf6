"""The ClickHouse sink: rows go in as Arrow over HTTP, one block as one insert, and are looked at after any doubt.

sink         the description that travels          writer     one insert, and its probe
target       the driver's view                     wire       one request over one connection, never repeated
check        whether a table is fit                replies    what an answer means
create       a table made for the guarantee        settings   what every request carries
columns, types, typenames                          what a column takes, exactly
coordinates, probe                                 which rows are there
"""
