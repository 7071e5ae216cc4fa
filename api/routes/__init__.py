"""HTTP: each route reads a request, asks a service, and answers. No SQL, no try."""
