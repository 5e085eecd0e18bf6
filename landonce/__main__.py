"""`python -m landonce`, and the file to give to spark-submit."""

from landonce.cli import main

main()
