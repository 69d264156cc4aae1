"""The dispatcher service: owns every pod that is not bound yet."""

from hoss import speak_tls_1_3_alone

speak_tls_1_3_alone()
