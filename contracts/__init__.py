"""What api, sidecar and client agree on: events, errors, HTTP bodies."""
