"""The one botocore session of this process.

A session reads the description of each AWS service from disk when it makes that service's first
client, which takes 70 ms of CPU; another client of the same session takes 5 ms.
"""

from __future__ import annotations

import functools

import aioboto3
from aiobotocore.session import AioSession


@functools.cache
def shared_session() -> aioboto3.Session:
    session = AioSession()
    # By default every LastModified of a listing is parsed by dateutil, which takes four times as
    # long as the listing itself; nothing here reads them.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    return aioboto3.Session(botocore_session=session)
