# write.py
"""Appends so many lines to access.log."""

import sys

with open("access.log", "a") as file:
    for number in range(int(sys.argv[1])):
        file.write(f"GET /{number}\n")
