"""The conflict resolver service: the only writer of the ledger."""

from hoss import speak_tls_1_3_alone

speak_tls_1_3_alone()
