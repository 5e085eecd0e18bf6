"""The Spark session, and what makes it start quickly and leave nothing behind."""
