"""The command `manyhop`: doctor, plan, convert, bench."""
