"""The dispatcher service: owns every pod that is not bound yet."""

from hoss import quieten_grpc, speak_tls_1_3_alone

quieten_grpc()
speak_tls_1_3_alone()
