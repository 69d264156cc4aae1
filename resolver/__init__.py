"""The conflict resolver service: the only writer of the ledger."""

from hoss import quieten_grpc, speak_tls_1_3_alone

quieten_grpc()
speak_tls_1_3_alone()
