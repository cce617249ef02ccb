"""MySQL and MariaDB, captured from the binary log. Start with `_source`."""
