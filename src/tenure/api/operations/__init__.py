"""Routes for those who run the server: models, health, load, ledger, metrics, cancels, the API's description."""
