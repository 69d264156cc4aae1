"""The WorkerLink service, queries to workers, answers about preemption, and overlap control as messages."""
