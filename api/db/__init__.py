"""Everything that knows SQL. Functions take a connection; who knows the unit of work opens it."""
