"""What the SQL stores share: statements as files, ids and rows as records. No driver, no I/O but reading those files."""
