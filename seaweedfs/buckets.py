"""Makes the buckets and writes to each: S3 answers seconds before a volume takes data.

Runs once, before the services that need the store.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

SECRETS = Path("/run/secrets")
SECONDS = 90.0
PAUSE_SECONDS = 0.5
PROBE_KEY = ".ready"
THERE_ALREADY = {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}


def main() -> None:
    buckets = (os.environ["HOLDFAST_S3_BUCKET"], os.environ["HOLDFAST_S3_STATE_BUCKET"])
    store = Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=os.environ["HOLDFAST_S3_ENDPOINT"],
        aws_access_key_id=(SECRETS / "holdfast_s3_access_key").read_text().strip(),
        aws_secret_access_key=(SECRETS / "holdfast_s3_secret_key").read_text().strip(),
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=10),
    )
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            for bucket in buckets:
                prepare(store, bucket)
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"the store takes no data after {SECONDS:.0f} s: {error}")
            time.sleep(PAUSE_SECONDS)
        else:
            sys.stdout.write(f"buckets: {', '.join(buckets)}\n")
            return


def prepare(store: Any, bucket: str) -> None:
    """Raises: BotoCoreError, ClientError."""
    try:
        store.create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in THERE_ALREADY:
            raise
    store.put_object(Bucket=bucket, Key=PROBE_KEY, Body=b"")
    store.delete_object(Bucket=bucket, Key=PROBE_KEY)


if __name__ == "__main__":
    main()
