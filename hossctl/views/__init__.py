"""The documents, tables and sentences that get, describe, status, top, policy and trace print."""
