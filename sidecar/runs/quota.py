"""How much a session may keep, held against what a barrier has proven."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.events import Quota as QuotaEvent


@dataclass(frozen=True)
class Quota:
    """0 means: any number. What is over it is kept and proven; only the next turn is refused."""

    bytes: int = 0
    files: int = 0

    def over(self, files: int, size: int) -> QuotaEvent | None:
        """What to say of a turn that left so much behind; None when it is within the quota."""
        said = []
        if self.bytes and size > self.bytes:
            said.append(f"{size} bytes, of which a session may keep {self.bytes}")
        if self.files and files > self.files:
            said.append(f"{files} files, of which a session may keep {self.files}")
        if not said:
            return None
        return QuotaEvent(
            files=files,
            bytes=size,
            most_files=self.files or None,
            most_bytes=self.bytes or None,
            message=f"The workspace has {' and '.join(said)}. Delete files before the next turn.",
        )
