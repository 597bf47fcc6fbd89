"""The file: tables, migrations, connections, and how values are stored."""
