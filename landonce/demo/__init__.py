"""The demo: a million records, three kills in the middle, and the proof. Everything in it is real."""
