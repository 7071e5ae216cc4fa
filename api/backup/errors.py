"""What keeps a backup from being made or brought back.

HoldfastError
└── BackupError (409)
    ├── BadBackup       the file is no backup, not a whole one, or of another version
    ├── NotEmpty        there is something where it would go
    └── WrongSchema     the database is of another version than this program
"""

from __future__ import annotations

from contracts.errors import HoldfastError


class BackupError(HoldfastError):
    code, status = "backup_failed", 409


class BadBackup(BackupError):
    code = "bad_backup"


class NotEmpty(BackupError):
    code = "not_empty"


class WrongSchema(BackupError):
    code = "wrong_schema"
