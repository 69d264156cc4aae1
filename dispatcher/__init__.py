"""The dispatcher service: owns every pod that is not yet bound."""
