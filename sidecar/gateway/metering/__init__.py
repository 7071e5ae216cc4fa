"""What a request to a model uses: read off the answer as it goes by, priced, held against a budget.

answer's bytes -> tap -> reading (one per protocol) -> request -> the session's records
"""
