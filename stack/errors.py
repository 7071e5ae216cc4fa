"""What the `holdfast` command reports about its own machine, in the shape of every other error.

HoldfastError
└── StackError
    ├── Misconfigured           a setting that cannot work
    ├── BinaryMissing           a program that the stack needs is not there
    ├── InstallFailed           the harness tree could not be installed
    ├── DownloadFailed          unreachable, cut, or not the file that was asked for
    ├── PortTaken               another process listens where the api should
    ├── DirectoryUnsafe         a directory of ours belongs to someone else
    ├── PartFailed              a part of the stack does not come up
    └── StackBusy               another `holdfast` command holds the stack
"""

from __future__ import annotations

from contracts.errors import HoldfastError


class StackError(HoldfastError):
    code = "stack_error"


class Misconfigured(StackError):
    code = "misconfigured"


class BinaryMissing(StackError):
    code = "binary_missing"


class InstallFailed(StackError):
    code, retryable = "install_failed", True


class DownloadFailed(StackError):
    code, retryable = "download_failed", True


class PortTaken(StackError):
    code = "port_taken"


class DirectoryUnsafe(StackError):
    code = "directory_unsafe"


class PartFailed(StackError):
    code = "part_failed"


class StackBusy(StackError):
    code, retryable = "stack_busy", True
