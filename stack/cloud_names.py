"""The clouds that Holdfast knows; no more, so that the command line need not import the rest."""

from __future__ import annotations

from enum import StrEnum


class Cloud(StrEnum):
    E2B = "e2b"
    DAYTONA = "daytona"
    MODAL = "modal"


TITLES = {Cloud.E2B: "E2B", Cloud.DAYTONA: "Daytona", Cloud.MODAL: "Modal"}
