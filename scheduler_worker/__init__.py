"""The scheduler worker service: decides alone, on its own view of the nodes."""

from hoss import quieten_grpc, speak_tls_1_3_alone

quieten_grpc()
speak_tls_1_3_alone()
