"""The database file: tables, migrations, connections and the encoding of values."""
