"""What keeps a backup from being made or brought back.

HoldfastError
└── BackupError (409)
    ├── BackupRunning   another backup writes the same file, or copies the same session
    ├── BadBackup       the file is no backup, or not a whole one
    │   ├── NewerBackup     it was made by a newer version
    │   └── StoreMismatch   the store does not return what was written
    ├── NotEmpty        there is something where it would go
    │   └── DatabaseInUse   others are connected to the database
    └── WrongSchema     the database is of another version than this program
"""

from __future__ import annotations

from contracts.errors import HoldfastError


class BackupError(HoldfastError):
    code, status = "backup_failed", 409


class BackupRunning(BackupError):
    code = "backup_running"


class BadBackup(BackupError):
    code = "bad_backup"


class NewerBackup(BadBackup):
    code = "newer_backup"


class StoreMismatch(BadBackup):
    code = "store_mismatch"


class NotEmpty(BackupError):
    code = "not_empty"


class DatabaseInUse(NotEmpty):
    code = "database_in_use"


class WrongSchema(BackupError):
    code = "wrong_schema"
