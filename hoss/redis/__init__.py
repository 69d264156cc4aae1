"""How HOSS reaches Redis: the forms of its URL, clients by URL, and the accounts of the services."""
