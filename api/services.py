"""What the routes work with: opened by the app's lifespan, closed by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from api.audit import Audit
from api.db.notify import Listener
from api.db.pool import Database
from api.edits import Edits
from api.followers import Followers
from api.ledger import Ledger
from api.matrix import Matrix
from api.permissions import Permissions
from api.scrape import Scrape
from api.sessions import Sessions
from api.sidecar import Sidecar
from api.store import Stores
from api.tokens import Tokens
from api.turns import Turns
from api.zipped import Archives


@dataclass(frozen=True)
class Services:
    database: Database
    stores: Stores
    sidecar: Sidecar
    listener: Listener
    ledger: Ledger
    turns: Turns
    sessions: Sessions
    permissions: Permissions
    edits: Edits
    followers: Followers
    archives: Archives
    matrix: Matrix
    tokens: Tokens
    audit: Audit
    scrape: Scrape


def of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


Use = Annotated[Services, Depends(of)]
